"""The levels of a run's model: which part of every tensor each of them holds.

Level l is what tier l adds to tier l + 1: hidden units [width(l+1), width(l)) of every elastic
tensor, and the layers that tier l + 1 skips. A tier-k replica holds the levels from k on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from aftermath.base.errors import SchemaError
from aftermath.model.config import ModelConfig

ELEMENT_BYTES = 4
"""Bytes of a number of the model's state, which is fp32."""


def is_table(name: str) -> bool:
    """Return whether a tensor has a row for every token: an embedding, or the output head."""
    return "embed" in name or name.endswith(("lm_head.weight", "wte.weight", "wpe.weight"))


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Return whether a tensor is a hidden matrix, which Muon can update.

    A stack of matrices (experts) counts too. Tables of tokens and depthwise filters do not.
    """
    return not is_table(name) and (len(shape) == 2 or (len(shape) > 2 and min(shape[-2:]) > 1))


@dataclass(frozen=True)
class Segment:
    """A level's part of a tensor: [start, stop) along `dim`, or all of it if `dim` is None."""

    dtype: ClassVar[str] = "float32"
    number_bytes: ClassVar[int] = 4

    name: str
    level: int
    dim: Literal[0, 1] | None
    start: int
    stop: int
    shape: tuple[int, ...]  # the part's shape

    @property
    def numel(self) -> int:
        """Return the number of parameters."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Return the segment's bytes."""
        return self.number_bytes * self.numel


class MomentumSegment(Segment):
    """A level's segment of a parameter's outer momentum (`optim.outer_momentum`)."""

    dtype: ClassVar[str] = "int64"
    number_bytes: ClassVar[int] = 8

    @classmethod
    def of(cls, segment: Segment) -> MomentumSegment:
        """Return the momentum segment of a parameter's segment."""
        return cls(**vars(segment) | {"name": MOMENTUM + segment.name})


MOMENTUM = "outer_momentum."
"""Prefix of the names of momentum tensors. The parameter's name follows."""
LARGEST_MOMENTUM = 1 << 52
"""Largest magnitude of a momentum. `optim.outer_momentum` shows that no apply exceeds it."""


def cut(config: ModelConfig, tiers: int) -> tuple[Segment, ...]:
    """Return all segments of a run's model in canonical order: level descending, then name."""
    shapes = [config.parameter_shapes(tier) for tier in range(tiers)]
    below: list[Mapping[str, tuple[int, ...]]] = [*shapes[1:], {}]
    return tuple(
        _segment(name, level, config.elastic_dim(name), shapes[level][name], below[level].get(name))
        for level in reversed(range(tiers))
        for name in sorted(shapes[level])
        if shapes[level][name] != below[level].get(name)
    )


def prefix(shape: Sequence[int]) -> tuple[slice, ...]:
    """Return the slices of the full tensor that a tier's tensor of this shape holds."""
    return tuple(map(slice, shape))


def checked_level(level: int, levels: int) -> int:
    """Return the level if it exists among `levels`. Raises SchemaError."""
    if not 0 <= level < levels:
        raise SchemaError(
            f"level {level} is out of range", f"This run has levels 0 to {levels - 1}"
        )
    return level


def _segment(
    name: str,
    level: int,
    dim: Literal[0, 1] | None,
    shape: tuple[int, ...],
    below: tuple[int, ...] | None,
) -> Segment:
    if dim is None:
        return Segment(name, level, None, 0, shape[0], shape)
    start = 0 if below is None else below[dim]
    stop = shape[dim]
    return Segment(
        name,
        level,
        dim,
        start,
        stop,
        tuple(stop - start if axis == dim else n for axis, n in enumerate(shape)),
    )
