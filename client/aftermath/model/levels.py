"""Levels: how a model's tensors are cut into strips that tiers hold.

Decided: level l is what tier l adds to tier l+1: hidden units [width(l+1), width(l)) of every elastic tensor, and the
tensors of layers that tier l+1 skips; the last level is all that the smallest tier holds. A tier-k replica holds the
levels >= k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aftermath.base.errors import AftermathError
from aftermath.model.config import ModelConfig


def is_table(name: str) -> bool:
    """Whether a tensor has a row for every token: an embedding, or the output head."""
    return "embed" in name or name.endswith(("lm_head.weight", "wte.weight", "wpe.weight"))


def is_hidden_matrix(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor maps activations to activations: what Muon is for, and no table with a row for every token.

    It may be a stack of such maps (experts); filters of one channel each, as of convolutions over time, are none.
    """
    return not is_table(name) and (len(shape) == 2 or (len(shape) > 2 and min(shape[-2:]) > 1))


class SchemaError(AftermathError):
    """The settings give no valid schema, or bytes that claim to be one are not."""

    code = "schema"


@dataclass(frozen=True)
class Segment:
    """One level's part of a tensor: hidden units [start, stop) along `dim`, or all of it when `dim` is None."""

    name: str
    level: int
    dim: Literal[0, 1] | None
    start: int
    stop: int
    shape: tuple[int, ...]  # of this part

    @property
    def numel(self) -> int:
        """Parameters."""
        return math.prod(self.shape)


def cut(config: ModelConfig, tiers: int) -> tuple[Segment, ...]:
    """Every segment of a run's model in canonical order: level descending, then name."""
    held = [config.parameter_shapes(tier) for tier in range(tiers)]
    below: list[Mapping[str, tuple[int, ...]]] = [*held[1:], {}]
    return tuple(
        _segment(name, level, config.elastic_dim(name), held[level][name], below[level].get(name))
        for level in reversed(range(tiers))
        for name in sorted(held[level])
        if held[level][name] != below[level].get(name)
    )


def prefix(shape: Sequence[int]) -> tuple[slice, ...]:
    """Where in the full model's tensor lies what a tier holds of it, in this shape."""
    return tuple(map(slice, shape))


def checked_level(level: int, levels: int) -> int:
    """Return the level if it exists among `levels`. Raises SchemaError."""
    if not 0 <= level < levels:
        raise SchemaError(f"level {level} is out of range", f"This run has levels 0 to {levels - 1}")
    return level


def _segment(
    name: str, level: int, dim: Literal[0, 1] | None, held: tuple[int, ...], below: tuple[int, ...] | None
) -> Segment:
    if dim is None:
        return Segment(name, level, None, 0, held[0], held)
    start, stop = 0 if below is None else below[dim], held[dim]
    return Segment(
        name, level, dim, start, stop, tuple(stop - start if axis == dim else n for axis, n in enumerate(held))
    )
