"""How the blocks of one level lie in memory and on the wire.

Decided
- Blocks of equal edges and equal top-k form one group, across tensors, so that a transform is one call for many
  tensors. Within a level a coefficient has one number, its *position*: groups in order of first appearance, blocks
  in canonical order inside a group, coefficients row-major inside a block.
- On the wire entry slots stay in the schema's canonical order (segments, then blocks); `canonical` and the slot
  arrays are the only places that know both orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aftermath.model.schema import Schema, Segment
from aftermath.optim.basis import check_edge


@dataclass(frozen=True)
class Part:
    """One segment's blocks inside its group: [first, first + segment.blocks)."""

    segment: Segment
    group: int
    first: int


@dataclass(frozen=True)
class Group:
    """All blocks of a level with the same edges and top-k."""

    height: int  # 1 for the blocks of vectors
    width: int
    topk: int
    blocks: int
    base: int  # position of the first coefficient

    @property
    def block(self) -> int:
        """Coefficients of one block."""
        return self.height * self.width


@dataclass(frozen=True)
class LevelLayout:
    """One level of a schema: its groups, its segments in canonical order, and what is known of every entry slot."""

    groups: tuple[Group, ...]
    parts: tuple[Part, ...]
    slot_base: NDArray[np.int64]  # position of the first coefficient of the slot's block
    slot_block: NDArray[np.uint16]  # coefficients in the slot's block: indices are below this
    slot_first: NDArray[np.bool_]  # is the slot the first of its block

    @property
    def entries(self) -> int:
        """Entry slots of the level."""
        return len(self.slot_base)

    def canonical(self, per_group: Sequence[Tensor]) -> Tensor:
        """One tensor [blocks, topk] per group, flattened into the canonical order of entry slots."""
        rows = [per_group[part.group][part.first : part.first + part.segment.blocks] for part in self.parts]
        return torch.cat([row.reshape(-1) for row in rows])

    def segment_of(self, slot: int) -> Segment:
        """The segment an entry slot belongs to."""
        for part in self.parts:
            if slot < part.segment.entries:
                return part.segment
            slot -= part.segment.entries
        raise IndexError("there is no such slot")


@lru_cache(maxsize=64)
def level_layout(schema: Schema, level: int) -> LevelLayout:
    """The layout of one level. Raises SchemaError if there is no such level, UnsupportedEdge for blocks too long."""
    segments = schema.of_level(level)
    counts: dict[tuple[int, int, int], int] = {}
    places = []
    for segment in segments:
        key = (*_edges(segment), segment.topk)
        places.append((key, counts.get(key, 0)))
        counts[key] = counts.get(key, 0) + segment.blocks
    groups, base = [], 0
    for (height, width, topk), blocks in counts.items():
        groups.append(Group(height, width, topk, blocks, base))
        base += blocks * height * width
    order = list(counts)
    parts = tuple(Part(s, order.index(key), first) for s, (key, first) in zip(segments, places, strict=True))
    return LevelLayout(tuple(groups), parts, *_slots(groups, parts))


def _edges(segment: Segment) -> tuple[int, int]:
    """Height and width of a segment's blocks; a vector's blocks have height 1. Tensors have one or two dimensions."""
    height, width = segment.chunk if len(segment.chunk) == 2 else (1, *segment.chunk)
    check_edge(height)
    check_edge(width)
    return height, width


def _slots(
    groups: Sequence[Group], parts: Sequence[Part]
) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.bool_]]:
    bases = [np.empty(0, np.int64)]
    blocks = [np.empty(0, np.uint16)]
    firsts = [np.empty(0, np.bool_)]
    for part in parts:
        group, count = groups[part.group], part.segment.blocks
        starts = group.base + (part.first + np.arange(count, dtype=np.int64)) * group.block
        bases.append(np.repeat(starts, group.topk))
        blocks.append(np.full(count * group.topk, group.block, np.uint16))
        firsts.append(np.tile(np.arange(group.topk) == 0, count))
    return np.concatenate(bases), np.concatenate(blocks), np.concatenate(firsts)
