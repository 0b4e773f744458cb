"""Split the blocks of the error feedback over the ranks of a member.

All blocks of a tier, in the order of levels, segments and blocks, are cut into runs of nearly equal
size, one per rank. Cuts lie between rows of blocks or between experts, so each part of a tensor is
a tensor with the same blocks. The parts in rank order equal the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

import torch

from aftermath.model.levels import Segment
from aftermath.model.segments import view
from aftermath.optim.blocks import Blocks
from aftermath.optim.interfaces import PseudoGradient
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.state_checks import STATE_KINDS

_NUMBERS_OF_AN_ENTRY = 3  # an int64 and an fp32, in fp32 numbers


@dataclass(frozen=True)
class Piece:
    """A run of rows of a segment."""

    part: Part
    """Position of the whole segment in its level."""
    first: int
    """First of the segment's blocks that is in the piece."""
    start: int
    """First of the segment's rows that is in the piece."""
    blocks: Blocks
    """Blocks of the piece, seen as a tensor of its own."""

    def of(self, gradient: PseudoGradient) -> torch.Tensor:
        """Return this piece of a pseudo-gradient's tensors."""
        return view(gradient.tensors, self.part.segment).narrow(
            0, self.start, self.blocks.segment.shape[0]
        )


@dataclass(frozen=True)
class Rows:
    """A rank's blocks [first, first + count) of a group. They form the rank's own `group`."""

    group: int
    first: int
    count: int


class RankBlocks:
    """The blocks that one rank holds."""

    def __init__(self, results: ResultFormat, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        cut = tuple(piece.blocks for piece in pieces)
        self.results = ResultFormat(cut, results.levels, results.transform, results.values)
        self.rows: dict[tuple[int, int], Rows] = {}
        """Blocks by (level, group)."""
        for level, level_pieces in groupby(pieces, lambda piece: piece.blocks.segment.level):
            layout = self.layout(level)
            for piece, part in zip(level_pieces, layout.parts, strict=True):
                first = piece.part.first + piece.first - part.first
                self.rows[level, piece.part.group] = Rows(
                    part.group, first, layout.groups[part.group].blocks
                )

    def state_names(self) -> dict[str, tuple[str, Rows]]:
        """Return the name of each state tensor in this part, and its rows, by its name in the
        whole state.
        """
        return {
            f"{kind}.{level}.{group}": (f"{kind}.{level}.{rows.group}", rows)
            for (level, group), rows in self.rows.items()
            for kind in STATE_KINDS
        }

    def layout(self, level: int) -> LevelLayout:
        """Return the layout of a level. It is empty if the rank holds nothing of the level."""
        return level_layout(self.results, level)


def split_blocks(results: ResultFormat, tier: int, ranks: int) -> list[RankBlocks]:
    """Return the blocks of a tier that each rank holds."""
    parts = [
        part for level in range(tier, results.levels) for part in level_layout(results, level).parts
    ]
    whole = sum(_weight(part) * part.blocks.grid[0] for part in parts)
    pieces: list[list[Piece]] = [[] for _ in range(ranks)]
    before = 0
    for part in parts:
        for rank, rows in groupby(
            range(part.blocks.grid[0]), _rank_of(before, _weight(part), whole, ranks)
        ):
            first, *rest = rows
            pieces[rank].append(_piece(part, first, 1 + len(rest)))
        before += _weight(part) * part.blocks.grid[0]
    return [RankBlocks(results, tuple(rank_pieces)) for rank_pieces in pieces]


def parts_of(pieces: Iterator[tuple[Piece, torch.Tensor]]) -> Iterator[tuple[Part, torch.Tensor]]:
    """Yield whole segments from all ranks' tensors [blocks, ...], in the order of ranks."""
    for part, rank_tensors in groupby(pieces, lambda pair: pair[0].part):
        yield part, torch.cat([tensor for _, tensor in rank_tensors])


def _weight(part: Part) -> int:
    """Return how many numbers of state a row of blocks has."""
    blocks = part.blocks
    return blocks.count // blocks.grid[0] * (blocks.size + _NUMBERS_OF_AN_ENTRY * blocks.topk)


def _rank_of(before: int, weight: int, whole: int, ranks: int) -> Callable[[int], int]:
    """Return a function that gives a row's rank, by the position of its middle in the whole."""
    return lambda row: (2 * before + (2 * row + 1) * weight) * ranks // (2 * whole)


def _piece(part: Part, first: int, rows: int) -> Piece:
    """Return `rows` rows of a segment's blocks."""
    segment = part.segment
    edge = part.blocks.edges[0]
    start = first * edge
    stop = min((first + rows) * edge, segment.shape[0])
    name = f"{segment.name}, level {segment.level}, {start} to {stop}"
    shape = (stop - start, *segment.shape[1:])
    blocks = Blocks(
        Segment(name, segment.level, None, 0, stop - start, shape),
        part.blocks.edges,
        part.blocks.topk,
    )
    return Piece(part, first * (part.blocks.count // part.blocks.grid[0]), start, blocks)
