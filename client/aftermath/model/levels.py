"""Levels: how a model's tensors are cut into strips that tiers hold, and strips into blocks.

Decided
- Level l is what tier l adds to tier l+1: hidden units [width(l+1), width(l)) of every elastic tensor; the last level
  is the smallest tier's prefix and every tensor that all tiers hold whole. A tier-k replica holds the levels >= k.
- Blocks never straddle two levels. A strip is cut into the fewest blocks of at most `chunk` along a dimension, as equal
  as they can be; the last one may reach over the end, where it is padded with zeros that are nobody's parameters. So
  the size of a result depends on the size of a tensor and not on its divisors.
- The token embedding and the output head may keep more coefficients per block than the rest: each of their rows learns
  only from the few tokens that name it, and most runs can afford it (`docs/research.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from aftermath.model.config import LlamaConfig, elastic_dim
from aftermath.run.errors import AftermathError

MAX_BLOCK = 65535  # indices are u16 and 0xFFFF marks an unused entry
EMBEDDINGS = frozenset({"model.embed_tokens.weight", "lm_head.weight"})  # tensors with a row for every token


class SchemaError(AftermathError):
    """The settings give no valid schema, or bytes that claim to be one are not."""


@dataclass(frozen=True)
class Segment:
    """One level's part of a tensor: hidden units [start, stop) along `dim`, or all of it when `dim` is None."""

    name: str
    level: int
    dim: Literal[0, 1] | None
    start: int
    stop: int
    shape: tuple[int, ...]  # of this part
    chunk: tuple[int, ...]  # block edge per dimension; the last block may reach over the end of the shape
    topk: int  # kept coefficients per block, at most the block's size

    @property
    def numel(self) -> int:
        """Parameters, without padding."""
        return math.prod(self.shape)

    @property
    def block(self) -> int:
        """Entries of one block, padding included; indices within a block are row-major and below this."""
        return math.prod(self.chunk)

    @property
    def grid(self) -> tuple[int, ...]:
        """Blocks along each dimension; blocks are numbered row-major over this grid."""
        return tuple(-(-size // edge) for size, edge in zip(self.shape, self.chunk, strict=True))

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def entries(self) -> int:
        """Coefficient slots in a result: `topk` for each block."""
        return self.blocks * self.topk


def cut(config: LlamaConfig, tiers: int, *, topk: int, topk_embeddings: int, chunk: int) -> tuple[Segment, ...]:
    """Every segment of a run's model in canonical order: level descending, then name. Raises SchemaError."""
    shapes = sorted(config.parameter_shapes().items())
    return tuple(
        _segment(name, shape, level, config, tiers, topk_embeddings if name in EMBEDDINGS else topk, chunk)
        for level in reversed(range(tiers))
        for name, shape in shapes
        if level == tiers - 1 or elastic_dim(name) is not None
    )


def _segment(
    name: str, full: tuple[int, ...], level: int, config: LlamaConfig, tiers: int, topk: int, chunk: int
) -> Segment:
    dim = elastic_dim(name)
    start, stop = (
        (0, full[0]) if dim is None else (0 if level == tiers - 1 else config.width(level + 1), config.width(level))
    )
    shape = tuple(stop - start if axis == dim else size for axis, size in enumerate(full))
    edges = tuple(_edge(size, chunk) for size in shape)
    block = math.prod(edges)
    if block > MAX_BLOCK:
        raise SchemaError(
            f"compression_chunk {chunk} gives {name} blocks of {block} entries; indices reach {MAX_BLOCK}",
            "use a compression_chunk of at most 255",
        )
    return Segment(name, level, dim, start, stop, shape, edges, min(topk, block))


def _edge(size: int, limit: int) -> int:
    """The shortest edge that needs no more blocks than `limit` does: the least padding."""
    return -(-size // -(-size // limit))
