"""What a member's optimizer knew after its last rounds, block by block with proofs, for whoever checks its work.

Choices:
- a state is asked for by its root, as a signed commitment has it; what is answered proves itself, so it is worth as
  much from anybody. Its size follows from the schema, and nothing longer is read;
- the state changes in place with every round. So copies are kept, of the states after the last STATES rounds that were
  trained: before and after of the last result but one too, which is judged while the next trains. All copies together
  take COPIES bytes at most. Of larger states fewer are kept, and of one that alone is larger none: its blocks are read
  where they are, and can be had until the next round changes them;
- whatever is read is hashed before it leaves: a block that has changed is refused, and not sent.
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
from aftermath.optim.private_blocks import BlockSpan, StateOutline, block_of, outline
from aftermath.p2p.transport import RequestRefused, Transport, short

TOPIC = "state"
STATES = 3
COPIES = 512 << 20
"""Bytes that the copies of one member take together at most."""
_QUESTION = Struct(f"<{DIGEST}sI")  # root, index of a block


class FalseBlock(AftermathError):
    """A peer answered with something else than the block that was asked for."""


@dataclass(frozen=True)
class KeptState:
    """A state that can be asked for."""

    tree: Tree
    outline: StateOutline
    copies: Mapping[str, Tensor] | None
    """None where there are none, and blocks are those of the optimizer."""
    read: Callable[[BlockSpan], bytes]
    """The bytes of a block."""


def kept_of(optimizer: Engine, tree: Tree) -> KeptState:
    """The state of an optimizer now, of which that is the tree; copied, unless it is too large."""
    parts = outline(optimizer.sizes())
    if parts.size > COPIES:
        return KeptState(tree, parts, None, optimizer.block)
    copies = optimizer.state()
    return KeptState(tree, parts, copies, partial(block_of, copies))


class StateShare:
    """Answers for the states that this member had last."""

    def __init__(self, transport: Transport) -> None:
        self._kept: dict[bytes, KeptState] = {}
        self._hidden: set[bytes] = set()
        self._reading = asyncio.Lock()
        transport.handle(TOPIC, self.answer)

    def offer(self, kept: KeptState, *, hidden: bool = False) -> None:
        """Serve a state, if it is hidden not before it is shown; and of those before as many as there is room for."""
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
        """Stop serving all of them and free their memory."""
        self._kept.clear()
        self._hidden.clear()

    async def answer(self, peer: bytes, body: bytes) -> bytes:
        """The proof of a block, and the block. Raises RequestRefused for what is not kept, or not any more."""
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
        else:  # it waits for what the devices compute; one at a time, since others need threads too
            async with self._reading:
                block = await asyncio.to_thread(kept.read, place)
        if block_digest(block) != kept.tree.digest(index):
            raise RequestRefused("the state has changed since")
        return b"".join([*kept.tree.proof(index), block])


def question(root: bytes, index: int) -> bytes:
    """What asks for a block of the state with that root."""
    return _QUESTION.pack(root, index)


async def ask_block(
    transport: Transport, peer: bytes, root: bytes, parts: StateOutline, index: int, deadline_s: float
) -> bytes:
    """A block of the private state with that root, whose outline the schema and the member's tier give.

    Raises RequestRefused if the peer does not keep that state, or not any more, other TransportErrors if it cannot be
    reached, and FalseBlock for a lie, after which the peer is kept out. IndexError if there is no such block.
    """
    most = parts.place(index).size + DIGEST * proof_length(index, parts.count)
    reply = await transport.request(peer, TOPIC, question(root, index), most, deadline_s)
    try:
        return proven(reply, root, parts, index)
    except FalseBlock:
        transport.bar(peer, f"a false block of the private state {short(root)}")
        raise


def proven(reply: bytes, root: bytes, parts: StateOutline, index: int) -> bytes:
    """The block in an answer. Raises FalseBlock unless it is the one with that index under that root."""
    size, hashes = parts.place(index).size, DIGEST * proof_length(index, parts.count)
    proof = [reply[at : at + DIGEST] for at in range(0, hashes, DIGEST)]
    block = reply[hashes:]
    if len(reply) != hashes + size or not proves(block, index, parts.count, proof, root):
        raise FalseBlock(
            f"what came is not block {index} of the private state {short(root)}", "Ask for it elsewhere, or later"
        )
    return block
