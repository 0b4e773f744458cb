"""How a segment is cut into blocks, of which a result keeps the strongest coefficients.

Decided
- Blocks never straddle two levels. A strip is cut into the fewest blocks of at most `chunk` along a dimension, as equal
  as they can be; the last one may reach over the end, where it is padded with zeros that are nobody's parameters. So
  the size of a result depends on the size of a tensor and not on its divisors.
- A tensor of more than two dimensions is a stack of matrices, as of experts: no block has numbers of two of them.
- A vector that evens out experts (`optim.balance`) has blocks of one number.
- The token embedding and the output head may keep more coefficients per block than the rest: each of their rows learns
  only from the few tokens that name it, and most runs can afford it (`docs/research.md`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from aftermath.model.levels import SchemaError, Segment, is_table
from aftermath.optim.balance import Balances, nothing_balances

MAX_BLOCK = 65535  # indices are u16, and one marks an unused entry
UNUSED = 0xFFFF  # index of an entry without a coefficient
MAX_EDGE = 1024  # a transform's basis is edge^2 float64 numbers


@dataclass(frozen=True)
class Blocks:
    """One segment's blocks."""

    segment: Segment
    edges: tuple[int, ...]
    """Of a block, per dimension; the last block may reach over the end of the segment."""
    topk: int
    """Kept coefficients per block, at most the block's size."""

    @cached_property
    def size(self) -> int:
        """Coefficients of one block, padding included; indices within a block are row-major and below this."""
        return math.prod(self.edges)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each dimension; blocks are numbered row-major over this grid."""
        return tuple(-(-size // edge) for size, edge in zip(self.segment.shape, self.edges, strict=True))

    @cached_property
    def count(self) -> int:
        """Blocks of the segment."""
        return math.prod(self.grid)

    @property
    def entries(self) -> int:
        """Entries in a result: `topk` for each block."""
        return self.count * self.topk


def cut(
    segments: Iterable[Segment], *, chunk: int, topk: int, topk_embeddings: int, balances: Balances = nothing_balances
) -> tuple[Blocks, ...]:
    """The blocks of every segment, in their order; what balances experts is cut into single numbers.

    Raises SchemaError if `chunk` makes them too large, and for a segment whose matrices do not follow each other.
    """
    return tuple(
        _blocks(s, 1 if balances(s.name) else chunk, topk_embeddings if is_table(s.name) else topk) for s in segments
    )


def _blocks(segment: Segment, chunk: int, topk: int) -> Blocks:
    stacked = len(segment.shape) - 2
    if stacked > 1 and segment.dim == 1:
        raise SchemaError(
            f"{segment.name} has {len(segment.shape)} dimensions and is cut along its second one: that "
            "leaves no stack of matrices to change in place",
            "Cut it along its first one, or not at all",
        )
    edges = tuple(1 if axis < stacked else _edge(size, chunk) for axis, size in enumerate(segment.shape))
    size = math.prod(edges)
    if size > MAX_BLOCK:
        raise SchemaError(
            f"compression_chunk {chunk} gives {segment.name} blocks of {size} entries; indices reach {MAX_BLOCK}",
            "Use a compression_chunk of at most 255",
        )
    if max(edges) > MAX_EDGE:
        raise SchemaError(
            f"compression_chunk {chunk} gives {segment.name} blocks with an edge of {max(edges)}; "
            f"the longest is {MAX_EDGE}",
            "Use a compression_chunk of at most 255",
        )
    return Blocks(segment, edges, min(topk, size))


def _edge(size: int, limit: int) -> int:
    """The shortest edge that needs no more blocks than `limit` does: the least padding."""
    return -(-size // -(-size // limit))
