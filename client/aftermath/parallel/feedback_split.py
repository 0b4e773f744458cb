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

from aftermath.model.schema import Segment
from aftermath.model.segments import view
from aftermath.optim.blocks import Blocks
from aftermath.optim.format import ResultFormat
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.parts import PseudoGradient

_NUMBERS_OF_AN_ENTRY = 3  # an int64 and an fp32, in fp32 numbers


@dataclass(frozen=True)
class Piece:
    """Some rows of a segment."""

    part: Part
    """The whole segment's place in its level."""
    first: int
    """The segment's first block that is in the piece."""
    start: int
    """The segment's first row that is."""
    blocks: Blocks
    """Those of the piece, as if it were a tensor of its own."""

    def of(self, made: PseudoGradient) -> torch.Tensor:
        """The piece of a pseudo-gradient's tensors."""
        return view(made.tensors, self.part.segment).narrow(
            0, self.start, self.blocks.segment.shape[0]
        )


@dataclass(frozen=True)
class Rows:
    """A rank's blocks of a group of a level: [first, first + count), which are a group of its own."""

    own: int
    first: int
    count: int


class Held:
    """What one rank holds."""

    def __init__(self, results: ResultFormat, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        cut = tuple(piece.blocks for piece in pieces)
        self.results = ResultFormat(cut, results.levels, results.transform, results.values)
        self.rows: dict[tuple[int, int], Rows] = {}
        """By level and group."""
        for level, own in groupby(pieces, lambda piece: piece.blocks.segment.level):
            layout = self.layout(level)
            for piece, part in zip(own, layout.parts, strict=True):
                first = piece.part.first + piece.first - part.first
                self.rows[level, piece.part.group] = Rows(
                    part.group, first, layout.groups[part.group].blocks
                )

    def layout(self, level: int) -> LevelLayout:
        """Of a level, of which the rank may hold nothing."""
        return level_layout(self.results, level)


def dealt(results: ResultFormat, tier: int, ranks: int) -> list[Held]:
    """What each rank holds of a tier's blocks."""
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
            first, *others = rows
            pieces[rank].append(_piece(part, first, 1 + len(others)))
        before += _weight(part) * part.blocks.grid[0]
    return [Held(results, tuple(own)) for own in pieces]


def parts_of(pieces: Iterator[tuple[Piece, torch.Tensor]]) -> Iterator[tuple[Part, torch.Tensor]]:
    """Whole segments, of what all ranks say of their pieces [blocks, ...], one rank after the
    other.
    """
    for part, own in groupby(pieces, lambda pair: pair[0].part):
        yield part, torch.cat([tensor for _, tensor in own])


def _weight(part: Part) -> int:
    """Of a row of blocks: the numbers that are remembered of it."""
    blocks = part.blocks
    return blocks.count // blocks.grid[0] * (blocks.size + _NUMBERS_OF_AN_ENTRY * blocks.topk)


def _rank_of(before: int, weight: int, whole: int, ranks: int) -> Callable[[int], int]:
    """Whose a row is: by where its middle lies in the whole."""
    return lambda row: (2 * before + (2 * row + 1) * weight) * ranks // (2 * whole)


def _piece(part: Part, first: int, rows: int) -> Piece:
    """Return `rows` rows of a segment's blocks."""
    segment, (edge, *_) = part.segment, part.blocks.edges
    start, stop = first * edge, min((first + rows) * edge, segment.shape[0])
    name, shape = (
        f"{segment.name}, level {segment.level}, {start} to {stop}",
        (stop - start, *segment.shape[1:]),
    )
    own = Blocks(
        Segment(name, segment.level, None, 0, stop - start, shape),
        part.blocks.edges,
        part.blocks.topk,
    )
    return Piece(part, first * (part.blocks.count // part.blocks.grid[0]), start, own)
