"""Serving a member's private optimizer state, block by block with Merkle proofs.

A state is requested by its root, which is in a signed commitment. An answer contains its own proof,
and its size follows from the schema. Every block is hashed before it is sent.
"""

from __future__ import annotations

import errno
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.base.merkle import DIGEST, Tree, block_digest, proof_length, proves
from aftermath.optim.engine import Engine
from aftermath.optim.state_merkle import BLOCK, BlockSpan, StateOutline, block_of, outline
from aftermath.p2p.transport import RequestRefused, Transport, short
from aftermath.replica.mapped_tensors import mapped_if_large

TOPIC = "state"
_QUESTION = struct.Struct(f"<{DIGEST}sI")  # root, index of a block


class StateBlock(NamedTuple):
    """A block of a private state, and the hashes that lead from it to the root."""

    data: bytes
    proof: tuple[bytes, ...]


class FalseBlock(AftermathError):
    """A peer answered with a block other than the requested one."""


class StoredBlocks(MutableMapping[int, StateBlock]):
    """Proven blocks of another member's state, in an unnamed file.

    A large state then takes no memory.
    """

    def __init__(self, directory: Path | None) -> None:
        """Create the file in `directory`, or in the system's directory for temporary files.

        Raises OSError. So do writes and reads of blocks.
        """
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The system frees its space when the file is closed, even if the process is killed.
        self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._known: dict[int, tuple[int, tuple[bytes, ...]]] = {}
        """Size and proof of each block, by index."""

    def __setitem__(self, index: int, block: StateBlock) -> None:
        with self._lock:
            self._file.seek(index * BLOCK)
            if self._file.write(block.data) < len(block.data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._known[index] = len(block.data), block.proof

    def __getitem__(self, index: int) -> StateBlock:
        size, proof = self._known[index]
        with self._lock:
            self._file.seek(index * BLOCK)
            return StateBlock(self._file.read(size), proof)

    def __delitem__(self, index: int) -> None:
        del self._known[index]

    def __contains__(self, index: object) -> bool:
        return index in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True)
class ServedState:
    """A state that peers may request."""

    tree: Tree
    outline: StateOutline
    copies: Mapping[str, Tensor]
    """Copies of the tensors."""

    def read(self, span: BlockSpan) -> bytes:
        """Return the bytes of a block."""
        return block_of(self.copies, span)


def copy_state(
    optimizer: Engine, tree: Tree, *, states: int, directory: Path | None = None
) -> ServedState:
    """Return a copy of an optimizer's current state, with its tree.

    The caller keeps `states` copies. They are in files in `directory` if together they exceed
    `mapped_tensors.MEMORY`. Raises as `mapped_if_large` does.
    """
    copies = mapped_if_large(optimizer.state(), states, directory)
    return ServedState(tree, outline(optimizer.sizes()), copies)


class StateShare:
    """Answers requests for this member's latest states."""

    def __init__(self, transport: Transport) -> None:
        self._states: dict[bytes, ServedState] = {}
        self._hidden: set[bytes] = set()
        self._lent: dict[bytes, list[Mapping[int, StateBlock]]] = {}
        transport.handle(TOPIC, self.answer)

    def offer(self, state: ServedState, *, states: int, hidden: bool = False) -> None:
        """Serve a state, after `show` if it is hidden. Keep `states` in total."""
        root = state.tree.root
        self._states.pop(root, None)
        self._states[root] = state
        while len(self._states) > states:
            del self._states[next(iter(self._states))]
        self._hidden &= self._states.keys() - {root}
        if hidden:
            self._hidden.add(root)

    def has(self, root: bytes) -> bool:
        """Return whether the state with this root is copied."""
        return root in self._states

    def show(self, root: bytes) -> None:
        """Serve a state that was hidden."""
        self._hidden.discard(root)

    def withdraw(self) -> None:
        """Stop serving all states and free their memory."""
        self._states.clear()
        self._hidden.clear()
        self._lent.clear()

    def lend(self, root: bytes, blocks: Mapping[int, StateBlock]) -> None:
        """Serve proven blocks of another member's state, because that member may stop serving
        them.
        """
        # The state after a result is also the one before the next result.
        self._lent.setdefault(root, []).append(blocks)

    def keep_lent(self, roots: Collection[bytes]) -> None:
        """Stop lending blocks of all other states."""
        self._lent = {root: blocks for root, blocks in self._lent.items() if root in roots}

    async def answer(self, peer: bytes, body: bytes) -> bytes:
        """Return the proof of a block, and the block. Raises RequestRefused if the state is not
        kept.
        """
        del peer
        if len(body) != _QUESTION.size:
            raise RequestRefused("the request must be a root and a block index")
        root, index = _QUESTION.unpack(body)
        for lent in self._lent.get(root, ()):
            if index in lent:
                data, proof = lent[index]
                return b"".join([*proof, data])
        state = self._states.get(root)
        if state is None or root in self._hidden or index >= state.outline.count:
            raise RequestRefused("this member does not have that block now")
        block = state.read(state.outline.place(index))
        if block_digest(block) != state.tree.digest(index):
            raise RequestRefused("the state has changed since it was committed")
        return b"".join([*state.tree.proof(index), block])


def question(root: bytes, index: int) -> bytes:
    """Return a request for a block of the state with that root."""
    return _QUESTION.pack(root, index)


async def ask_block(
    transport: Transport,
    peer: bytes,
    root: bytes,
    state_outline: StateOutline,
    index: int,
    deadline_s: float,
) -> StateBlock:
    """Return a block of the private state with that root.

    `state_outline` is the outline of the member's tier. Raises RequestRefused if the peer does not
    have that state, and other TransportErrors if it cannot be reached. Raises FalseBlock for a
    false answer, and bans the peer. Raises IndexError if there is no such block.
    """
    most = state_outline.place(index).size + DIGEST * proof_length(index, state_outline.count)
    reply = await transport.request(peer, TOPIC, question(root, index), most, deadline_s)
    try:
        return proven(reply, root, state_outline, index)
    except FalseBlock:
        transport.bar(peer, f"a false block of the private state {short(root)}")
        raise


def proven(reply: bytes, root: bytes, state_outline: StateOutline, index: int) -> StateBlock:
    """Return the block in an answer. Raises FalseBlock unless it is the requested one."""
    size = state_outline.place(index).size
    hashes = DIGEST * proof_length(index, state_outline.count)
    proof = tuple(reply[at : at + DIGEST] for at in range(0, hashes, DIGEST))
    block = reply[hashes:]
    if len(reply) != hashes + size or not proves(block, index, state_outline.count, proof, root):
        raise FalseBlock(
            f"the received bytes are not block {index} of the private state {short(root)}",
            "Ask another peer, or try again later",
        )
    return StateBlock(block, proof)
