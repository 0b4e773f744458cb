"""The layout of one level's blocks in memory and on the wire.

In memory, blocks with equal edges and top-k form one group across tensors, so that one call
transforms many tensors. On the wire, entries have canonical order: segments, then blocks.
`canonical` and `grouped` convert between both orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.result_format import ResultFormat


@dataclass(frozen=True)
class Part:
    """One segment's blocks inside its group: [first, first + blocks.count)."""

    blocks: Blocks
    group: int
    first: int

    @property
    def segment(self) -> Segment:
        """Return the segment of these blocks."""
        return self.blocks.segment

    def of(self, group: Tensor) -> Tensor:
        """Return the segment's rows of a tensor that has one row for every block of the group."""
        return group[self.first : self.first + self.blocks.count]


@dataclass(frozen=True)
class Group:
    """All blocks of a level with the same edges and top-k."""

    height: int  # 1 for the blocks of vectors
    width: int
    topk: int
    blocks: int
    # Position of the first coefficient. Positions count groups in order of first appearance, blocks
    # in canonical order, and coefficients row-major.
    base: int
    digits: bool  # whether its blocks are written as digits

    @property
    def block(self) -> int:
        """Return the number of coefficients in one block."""
        return self.height * self.width


@dataclass(frozen=True)
class LevelLayout:
    """One level of a result: groups, segments in canonical order, and facts per entry."""

    groups: tuple[Group, ...]
    parts: tuple[Part, ...]

    def __hash__(self) -> int:
        """Return the cached hash: every payload looks up tables on its device."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.groups, self.parts))

    @cached_property
    def blocks(self) -> int:
        """Return the number of blocks in the level."""
        return sum(group.blocks for group in self.groups)

    @cached_property
    def numbers(self) -> int:
        """Return the number of coefficients in all blocks."""
        return sum(group.blocks * group.block for group in self.groups)

    def canonical(self, per_group: Sequence[Tensor]) -> Tensor:
        """Flatten one tensor [blocks, n] per group (for example n = topk) into canonical order."""
        if not any(blocks.shape[1] for blocks in per_group):
            return per_group[0].new_empty(0)
        return torch.cat([part.of(per_group[part.group]).reshape(-1) for part in self.parts])

    def grouped(self, flat: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """Invert `canonical`, with `widths` numbers per block of each group."""
        tensors = [
            flat.new_empty(group.blocks, width)
            for group, width in zip(self.groups, widths, strict=True)
        ]
        if not any(widths):
            return tensors
        sizes = [part.blocks.count * widths[part.group] for part in self.parts]
        for part, rows in zip(self.parts, flat.split(sizes), strict=True):
            target = part.of(tensors[part.group])
            target.copy_(rows.view(target.shape))
        return tensors

    def block_of(self, group: int, block: int) -> tuple[Segment, int]:
        """Return the segment of a group's block, and the block's number in it."""
        for part in self.parts:
            if part.group == group and part.first <= block < part.first + part.blocks.count:
                return part.segment, block - part.first
        raise IndexError("there is no such block")

    def segment_of(self, entry: int) -> Segment:
        """Return the segment of an entry."""
        for part in self.parts:
            if entry < part.blocks.entries:
                return part.segment
            entry -= part.blocks.entries
        raise IndexError("there is no such entry")


@lru_cache(maxsize=64)
def level_layout(results: ResultFormat, level: int) -> LevelLayout:
    """Return the layout of one level. Raises SchemaError if the level does not exist."""
    counts: dict[tuple[int, int, int], int] = {}
    places = []
    for blocks in results.of_level(level):
        key = (*_edges(blocks), blocks.topk)
        places.append((blocks, key, counts.get(key, 0)))
        counts[key] = counts.get(key, 0) + blocks.count
    groups = []
    base = 0
    for (height, width, topk), count in counts.items():
        groups.append(
            Group(height, width, topk, count, base, results.as_digits(height * width, topk))
        )
        base += count * height * width
    order = list(counts)
    parts = tuple(Part(blocks, order.index(key), first) for blocks, key, first in places)
    return LevelLayout(tuple(groups), parts)


def _edges(blocks: Blocks) -> tuple[int, int]:
    """Return height and width of a segment's blocks. A vector's blocks have height 1."""
    height, width = (1, *blocks.edges)[-2:]
    return height, width
