"""How the blocks of one level lie in memory and on the wire.

Decided
- Blocks of equal edges and equal top-k form one group, across tensors, so that a transform is one call for many
  tensors. Within a level a coefficient has one number, its *position*: groups in order of first appearance, blocks
  in canonical order inside a group, coefficients row-major inside a block.
- On the wire entries stay in the format's canonical order (segments, then blocks); `canonical` and the entry
  arrays are the only places that know both orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.optim.blocks import Blocks
from aftermath.optim.format import ResultFormat


@dataclass(frozen=True)
class Part:
    """One segment's blocks inside its group: [first, first + blocks.count)."""

    blocks: Blocks
    group: int
    first: int

    @property
    def segment(self) -> Segment:
        """Whose blocks they are."""
        return self.blocks.segment

    def of(self, group: Tensor) -> Tensor:
        """The segment's own rows of a tensor with one for every block of the group."""
        return group[self.first : self.first + self.blocks.count]


@dataclass(frozen=True)
class Group:
    """All blocks of a level with the same edges and top-k."""

    height: int  # 1 for the blocks of vectors
    width: int
    topk: int
    blocks: int
    base: int  # position of the first coefficient
    digits: bool  # are its blocks written as digits

    @property
    def block(self) -> int:
        """Coefficients of one block."""
        return self.height * self.width


@dataclass(frozen=True)
class LevelLayout:
    """One level of a result: its groups, its segments in canonical order, and what is known of every entry."""

    groups: tuple[Group, ...]
    parts: tuple[Part, ...]

    def __hash__(self) -> int:
        """Made once: tables on devices are looked up by it for every payload."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.groups, self.parts))

    @cached_property
    def blocks(self) -> int:
        """Blocks of the level."""
        return sum(group.blocks for group in self.groups)

    @cached_property
    def numbers(self) -> int:
        """Numbers of all blocks."""
        return sum(group.blocks * group.block for group in self.groups)

    @property
    def entries(self) -> int:
        """Entries of the level."""
        return sum(part.blocks.entries for part in self.parts)

    def canonical(self, per_group: Sequence[Tensor]) -> Tensor:
        """One tensor [blocks, n] per group, as with n = topk of entries, flattened into the canonical order."""
        if not any(blocks.shape[1] for blocks in per_group):
            return per_group[0].new_empty(0)
        return torch.cat([part.of(per_group[part.group]).reshape(-1) for part in self.parts])

    def grouped(self, flat: Tensor, widths: Sequence[int]) -> list[Tensor]:
        """What `canonical` was given, with so many numbers for each block of a group."""
        found = [flat.new_empty(group.blocks, width) for group, width in zip(self.groups, widths, strict=True)]
        if not any(widths):
            return found
        sizes = [part.blocks.count * widths[part.group] for part in self.parts]
        for part, rows in zip(self.parts, flat.split(sizes), strict=True):
            own = part.of(found[part.group])
            own.copy_(rows.view(own.shape))
        return found

    def block_of(self, group: int, block: int) -> tuple[Segment, int]:
        """The segment that a group's block belongs to, and its number there."""
        for part in self.parts:
            if part.group == group and part.first <= block < part.first + part.blocks.count:
                return part.segment, block - part.first
        raise IndexError("there is no such block")

    def segment_of(self, entry: int) -> Segment:
        """The segment an entry belongs to."""
        for part in self.parts:
            if entry < part.blocks.entries:
                return part.segment
            entry -= part.blocks.entries
        raise IndexError("there is no such entry")


@lru_cache(maxsize=64)
def level_layout(results: ResultFormat, level: int) -> LevelLayout:
    """The layout of one level. Raises SchemaError if there is no such level."""
    counts: dict[tuple[int, int, int], int] = {}
    places = []
    for blocks in results.of_level(level):
        key = (*_edges(blocks), blocks.topk)
        places.append((blocks, key, counts.get(key, 0)))
        counts[key] = counts.get(key, 0) + blocks.count
    groups, base = [], 0
    for (height, width, topk), count in counts.items():
        groups.append(Group(height, width, topk, count, base, results.as_digits(height * width, topk)))
        base += count * height * width
    order = list(counts)
    parts = tuple(Part(blocks, order.index(key), first) for blocks, key, first in places)
    return LevelLayout(tuple(groups), parts)


def _edges(blocks: Blocks) -> tuple[int, int]:
    """Height and width of a segment's blocks; a vector's blocks have height 1."""
    height, width = (1, *blocks.edges)[-2:]
    return height, width
