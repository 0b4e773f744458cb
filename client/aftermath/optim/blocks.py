"""Cut a segment into blocks. A result keeps the strongest coefficients of each block.

Blocks never span two levels. Along each dimension, a segment is cut into as few equal blocks of at
most `chunk` as possible. The last block may extend beyond the end, where zeros pad it. So a
result's size depends on tensor sizes, not on their divisors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from aftermath.base.errors import SchemaError
from aftermath.model.levels import Segment, is_table
from aftermath.model.schema import StateSchema
from aftermath.optim.moe_bias import Balances, nothing_balances
from aftermath.rules.optimizer import Compressed

MAX_BLOCK = 65535  # indices are u16, and one marks an unused entry
UNUSED = 0xFFFF  # index of an entry without a coefficient
MAX_EDGE = 1024  # a transform's basis is edge^2 float64 numbers


@dataclass(frozen=True)
class Blocks:
    """The blocks of one segment."""

    segment: Segment
    edges: tuple[int, ...]
    """Edges of a block, per dimension. The last block may extend beyond the segment's end."""
    topk: int
    """Kept coefficients per block, at most the block's size."""

    @cached_property
    def size(self) -> int:
        """Return the number of coefficients of one block, padding included.

        Indices are row-major and below this number.
        """
        return math.prod(self.edges)

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Return the number of blocks per dimension. Blocks have row-major numbers in this grid."""
        return tuple(
            -(-size // edge) for size, edge in zip(self.segment.shape, self.edges, strict=True)
        )

    @cached_property
    def count(self) -> int:
        """Return the number of blocks in the segment."""
        return math.prod(self.grid)

    @property
    def entries(self) -> int:
        """Return the number of entries in a result: `topk` for each block."""
        return self.count * self.topk


def cut(
    segments: Iterable[Segment],
    *,
    chunk: int,
    topk: int,
    topk_embeddings: int,
    balances: Balances = nothing_balances,
) -> tuple[Blocks, ...]:
    """Return the blocks of every segment, in order.

    Raises SchemaError if `chunk` makes them too large, or if a segment's matrices are not adjacent.
    """
    # Each row of the embedding and the head learns from few tokens, and most runs can afford to
    # send more of these values (docs/models.md). Balance vectors (`optim.moe_bias`) have blocks of
    # one number.
    return tuple(
        _blocks(s, 1 if balances(s.name) else chunk, topk_embeddings if is_table(s.name) else topk)
        for s in segments
    )


def blocks_of(state: StateSchema, optimizer: Compressed) -> tuple[Blocks, ...]:
    """Return the blocks of a model's segments. Raises SchemaError as `cut` does."""
    return cut(
        state.segments,
        chunk=optimizer.chunk,
        topk=optimizer.topk,
        topk_embeddings=optimizer.topk_embeddings,
        balances=state.config.balances,
    )


def _blocks(segment: Segment, chunk: int, topk: int) -> Blocks:
    # A tensor of more than two dimensions is a stack of matrices, for example of experts. No block
    # spans two matrices.
    stacked = len(segment.shape) - 2
    if stacked > 1 and segment.dim == 1:
        raise SchemaError(
            f"{segment.name} has {len(segment.shape)} dimensions, so levels cannot cut it along the second one",
            "Cut it along the first dimension, or not at all",
        )
    edges = tuple(
        1 if axis < stacked else _edge(size, chunk) for axis, size in enumerate(segment.shape)
    )
    size = math.prod(edges)
    if size > MAX_BLOCK:
        raise SchemaError(
            f"compression_chunk {chunk} gives {segment.name} blocks of {size} entries; the limit is {MAX_BLOCK}",
            "Use a compression_chunk of at most 255",
        )
    if max(edges) > MAX_EDGE:
        raise SchemaError(
            f"compression_chunk {chunk} gives {segment.name} blocks with an edge of {max(edges)}; "
            f"the limit is {MAX_EDGE}",
            "Use a compression_chunk of at most 255",
        )
    return Blocks(segment, edges, min(topk, size))


def _edge(size: int, limit: int) -> int:
    """Return the shortest edge that needs no more blocks than `limit` does, to minimise padding."""
    return -(-size // -(-size // limit))
