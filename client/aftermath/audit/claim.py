"""A member's claim: its result, and proven blocks of the private state that it committed to.

An auditor fetches all blocks of the moments and a few blocks of the residual. It also fetches the
blocks with the entries that were chosen from those residual blocks. `claim_of` returns the claim of
a complete state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aftermath.base.merkle import proves
from aftermath.optim.blocks import UNUSED
from aftermath.optim.layout import Group, level_layout
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.schema import Schema
from aftermath.optim.state_merkle import BlockSpan, StateOutline, block_of, outline, tree_of
from aftermath.replica.state_sharing import StateBlock
from aftermath.rules.committee import shuffle

RESULT = "result."
"""Prefix of the error-feedback tensors in a private state. All others are moments."""
RESIDUAL = f"{RESULT}residual."
INDICES = f"{RESULT}indices."
VALUES = f"{RESULT}values."
MOMENTS = "private."
RESIDUAL_BLOCKS = 8
"""Blocks of the residual that an auditor compares."""
_DTYPES = {torch.float32: "<f4", torch.int64: "<i8"}  # in the bytes of a state block


@dataclass(frozen=True)
class Claim:
    """A member's result, and the known blocks of its private state after the share."""

    payloads: Mapping[int, bytes]
    """Payload per held level."""
    root: bytes
    """Root of the private state after the share, from the commitment."""
    blocks: Mapping[int, StateBlock]
    """Blocks of that state, by index (`StateOutline.place`)."""

    def false_block(self, state_outline: StateOutline) -> int | None:
        """Return the index of a block that is not in the committed state, if there is one."""
        for index, block in self.blocks.items():
            if len(block.data) != state_outline.place(index).size or not proves(
                block.data, index, state_outline.count, block.proof, self.root
            ):
                return index
        return None


@dataclass(frozen=True)
class ProvenBlocks:
    """Proven blocks of a member's private state before and after its share."""

    before: Mapping[int, StateBlock]
    after: Mapping[int, StateBlock]


def claim_of(
    payloads: Mapping[int, bytes],
    state: Mapping[str, Tensor],
    blocks: Collection[int] | None = None,
) -> Claim:
    """Return the claim of a member with this private state (`Engine.state`).

    `blocks` are the indices of the blocks that an auditor fetches. None fetches all.
    """
    state_outline = outline_of_state(state)
    tree = tree_of(state)
    return Claim(
        payloads,
        tree.root,
        {
            index: StateBlock(block_of(state, state_outline.place(index)), tuple(tree.proof(index)))
            for index in (range(state_outline.count) if blocks is None else blocks)
        },
    )


def outline_of_state(state: Mapping[str, Tensor]) -> StateOutline:
    """Return the outline of a private state."""
    return outline({name: tensor.nbytes for name, tensor in state.items()})


def blocks_to_fetch(
    state_outline: StateOutline, results: ResultFormat, residual_blocks: Collection[int]
) -> list[int]:
    """Return the indices of the blocks that an audit of these blocks of the residual needs.

    These are the blocks themselves, the blocks of the entries that were chosen from them, and all
    moments. Raises ValueError for a block that is not of the residual.
    """
    spans = [state_outline.place(index) for index in residual_blocks]
    entries = [part for span in spans for part in _entries_of(span, results)]
    indices = []
    for index in range(state_outline.count):
        span = state_outline.place(index)
        is_moment = not span.name.startswith(RESULT)
        if is_moment or span in spans or any(_overlap(span, part) for part in entries):
            indices.append(index)
    return indices


def start_blocks(
    state_outline: StateOutline, schema: Schema, residual_blocks: Collection[int]
) -> list[int]:
    """Return the indices of the blocks of the state before a share that its replay needs."""
    # Without an inner optimizer, the share trains at look-ahead weights, which depend on the whole
    # residual.
    if schema.optimizer.inner_optimizer is None:
        return list(range(state_outline.count))
    return [
        index
        for index in range(state_outline.count)
        if index in residual_blocks or not state_outline.place(index).name.startswith(RESIDUAL)
    ]


def drawn_residual_blocks(state_outline: StateOutline, seed: bytes) -> list[int]:
    """Return up to RESIDUAL_BLOCKS indices of blocks of the residual.

    Only the first 8 bytes of `seed` are used. A member must not know the seed when it commits to
    its state, because it could falsify all other blocks. All jurors must use the same seed.
    Otherwise jurors whose blocks are correct convict an auditor that found a false one.
    """
    blocks = [
        index
        for index in range(state_outline.count)
        if state_outline.place(index).name.startswith(RESIDUAL)
    ]
    order = shuffle(int.from_bytes(seed[:8], "little"), len(blocks))
    return sorted(blocks[number] for number in order[:RESIDUAL_BLOCKS])


def _entries_of(span: BlockSpan, results: ResultFormat) -> list[BlockSpan]:
    """Return where the entries of a span of the residual are in the state."""
    if not span.name.startswith(RESIDUAL):
        raise ValueError(f"{span.name} is not part of the residual")
    where = span.name.removeprefix(RESIDUAL)
    group = _group_of(results, where)
    row = group.block * torch.float32.itemsize
    first = span.start // row
    last = -(-span.stop // row)
    sizes = {INDICES: torch.int64.itemsize, VALUES: torch.float32.itemsize}
    return [
        BlockSpan(f"{kind}{where}", first * group.topk * size, last * group.topk * size)
        for kind, size in sizes.items()
    ]


def _group_of(results: ResultFormat, where: str) -> Group:
    """Return the group of blocks that the tensors named `LEVEL.GROUP` belong to."""
    level, group = map(int, where.split("."))
    return level_layout(results, level).groups[group]


def _overlap(one: BlockSpan, other: BlockSpan) -> bool:
    return one.name == other.name and one.start < other.stop and other.start < one.stop


@dataclass(frozen=True)
class KnownState:
    """A partly known private state.

    Unknown numbers of the residual are zero, and unknown entries are unused.
    """

    tensors: Mapping[str, Tensor]
    spans: Mapping[str, list[tuple[int, int]]]
    """The known bytes [start, stop) of each tensor, in order, without adjacent spans."""

    def whole(self, name: str) -> bool:
        """Return whether all bytes of a tensor are known."""
        size = self.tensors[name].nbytes
        return not size or self.spans.get(name) == [(0, size)]

    def rows(self, name: str) -> Tensor:
        """Return which rows of a tensor are wholly known, bool [rows]."""
        tensor = self.tensors[name]
        known = torch.zeros(len(tensor), dtype=torch.bool)
        if not tensor.nbytes:
            return known.fill_(True)
        row = tensor[0].nbytes
        for start, stop in self.spans.get(name, ()):
            known[-(-start // row) : stop // row] = True
        return known


def known_state(like: Mapping[str, Tensor], blocks: Mapping[int, StateBlock]) -> KnownState:
    """Assemble a private state from some of its blocks. The caller has checked their sizes.

    `like` gives names, shapes and dtypes.
    """
    state_outline = outline_of_state(like)
    contents = {name: _unknown(name, tensor) for name, tensor in like.items()}
    spans: dict[str, list[tuple[int, int]]] = {}
    for index in sorted(blocks):
        name, start, stop = state_outline.place(index)
        contents[name][start:stop] = np.frombuffer(blocks[index].data, np.uint8)
        known = spans.setdefault(name, [])
        if known and known[-1][1] == start:
            start, _ = known.pop()
        known.append((start, stop))
    tensors = {
        name: torch.from_numpy(
            contents[name].view(_DTYPES[tensor.dtype]).astype(_DTYPES[tensor.dtype][1:])
        ).view(tensor.shape)
        for name, tensor in like.items()
    }
    return KnownState(tensors, spans)


def _unknown(name: str, like: Tensor) -> np.ndarray:
    """Return the bytes of a tensor without known blocks."""
    filler = UNUSED if name.startswith(INDICES) else 0
    return np.full(like.numel(), filler, _DTYPES[like.dtype]).view(np.uint8)
