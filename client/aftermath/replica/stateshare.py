"""Serving a member's private optimizer state, block by block with Merkle proofs.

A state is requested by its root, which a signed commitment has. An answer proves itself, and its
size follows from the schema. Every block is hashed before it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct

from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.base.merkle import DIGEST, Tree, block_digest, proof_length, proves
from aftermath.optim.engine import Engine
from aftermath.optim.state_merkle import BlockSpan, StateOutline, block_of, outline
from aftermath.p2p.transport import RequestRefused, Transport, short

TOPIC = "state"
STATES = 3
COPIES = 512 << 20
"""Bytes of all copies of one member. States beyond that are served from the optimizer until the
next round.
"""
_QUESTION = Struct(f"<{DIGEST}sI")  # root, index of a block


class FalseBlock(AftermathError):
    """A peer answered with another block than the requested one."""


@dataclass(frozen=True)
class KeptState:
    """A state that peers may request."""

    tree: Tree
    outline: StateOutline
    copies: Mapping[str, Tensor] | None
    """Copies of the tensors; None if blocks are read from the optimizer."""
    read: Callable[[BlockSpan], bytes]
    """Reads the bytes of a block."""


def kept_of(optimizer: Engine, tree: Tree) -> KeptState:
    """Return an optimizer's current state, with its tree. It is copied, unless it is too large."""
    parts = outline(optimizer.sizes())
    if parts.size > COPIES:
        return KeptState(tree, parts, None, optimizer.block)
    copies = optimizer.state()
    return KeptState(tree, parts, copies, partial(block_of, copies))


class StateShare:
    """Answers requests for the states that this member had last."""

    def __init__(self, transport: Transport) -> None:
        self._kept: dict[bytes, KeptState] = {}
        self._hidden: set[bytes] = set()
        self._reading = asyncio.Lock()
        transport.handle(TOPIC, self.answer)

    def offer(self, kept: KeptState, *, hidden: bool = False) -> None:
        """Serve a state, after `show` if it is hidden, and as many earlier ones as fit."""
        # A round changes the state in place. Judges of the last but one result need the states
        # before and after it, while the next round trains.
        root = kept.tree.root
        self._kept.pop(root, None)
        self._kept[root] = kept
        while len(self._kept) > max(1, min(STATES, COPIES // kept.outline.size)):
            del self._kept[next(iter(self._kept))]
        self._hidden &= self._kept.keys() - {root}
        if hidden:
            self._hidden.add(root)

    def show(self, root: bytes) -> None:
        """Serve a state that was hidden."""
        self._hidden.discard(root)

    def withdraw(self) -> None:
        """Stop serving all states and free their memory."""
        self._kept.clear()
        self._hidden.clear()

    async def answer(self, peer: bytes, body: bytes) -> bytes:
        """Return the proof of a block, and the block. Raises RequestRefused if the state is not
        kept.
        """
        del peer
        if len(body) != _QUESTION.size:
            raise RequestRefused("a root and the index of a block are expected")
        root, index = _QUESTION.unpack(body)
        kept = self._kept.get(root)
        if kept is None or root in self._hidden or index >= kept.outline.count:
            raise RequestRefused("there is no such block here now")
        place = kept.outline.place(index)
        if kept.copies is not None:
            block = kept.read(place)
        else:  # reading waits for the devices; one at a time, since others need threads too
            async with self._reading:
                block = await asyncio.to_thread(kept.read, place)
        if block_digest(block) != kept.tree.digest(index):
            raise RequestRefused("the state has changed since")
        return b"".join([*kept.tree.proof(index), block])


def question(root: bytes, index: int) -> bytes:
    """Return a request for a block of the state with that root."""
    return _QUESTION.pack(root, index)


async def ask_block(
    transport: Transport,
    peer: bytes,
    root: bytes,
    parts: StateOutline,
    index: int,
    deadline_s: float,
) -> bytes:
    """Return a block of the private state with that root. `parts` is the outline of the member's
    tier.

    Raises RequestRefused if the peer does not keep that state, other TransportErrors if it cannot
    be reached, FalseBlock for a false answer (the peer is then barred), and IndexError if there is
    no such block.
    """
    most = parts.place(index).size + DIGEST * proof_length(index, parts.count)
    reply = await transport.request(peer, TOPIC, question(root, index), most, deadline_s)
    try:
        return proven(reply, root, parts, index)
    except FalseBlock:
        transport.bar(peer, f"a false block of the private state {short(root)}")
        raise


def proven(reply: bytes, root: bytes, parts: StateOutline, index: int) -> bytes:
    """Return the block in an answer. Raises FalseBlock unless it is the requested one."""
    size = parts.place(index).size
    hashes = DIGEST * proof_length(index, parts.count)
    proof = [reply[at : at + DIGEST] for at in range(0, hashes, DIGEST)]
    block = reply[hashes:]
    if len(reply) != hashes + size or not proves(block, index, parts.count, proof, root):
        raise FalseBlock(
            f"what came is not block {index} of the private state {short(root)}",
            "Ask for it elsewhere, or later",
        )
    return block
