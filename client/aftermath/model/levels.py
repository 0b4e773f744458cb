"""Levels: how a model's tensors are cut into strips that tiers hold.

Decided: level l is what tier l adds to tier l+1: hidden units [width(l+1), width(l)) of every elastic tensor; the last
level is the smallest tier's prefix and every tensor that all tiers hold whole. A tier-k replica holds the levels >= k.
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


def is_hidden_matrix(name: str, dimensions: int) -> bool:
    """Whether a tensor maps activations to activations: what Muon is for, and no table with a row for every token."""
    return dimensions == 2 and not is_table(name)


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

    @property
    def numel(self) -> int:
        """Parameters."""
        return math.prod(self.shape)


def cut(config: ModelConfig, tiers: int) -> tuple[Segment, ...]:
    """Every segment of a run's model in canonical order: level descending, then name."""
    held = [config.parameter_shapes(tier) for tier in range(tiers)]
    return tuple(
        _segment(name, level, config, held)
        for level in reversed(range(tiers))
        for name in sorted(held[0])
        if level == tiers - 1 or config.elastic_dim(name) is not None
    )


def checked_level(level: int, levels: int) -> int:
    """The level, if it is one of so many. Raises SchemaError."""
    if not 0 <= level < levels:
        raise SchemaError(f"level {level} is out of range", f"this run has levels 0 to {levels - 1}")
    return level


def _segment(name: str, level: int, config: ModelConfig, held: Sequence[Mapping[str, tuple[int, ...]]]) -> Segment:
    dim, full = config.elastic_dim(name), held[0][name]
    start, stop = 0, full[0]
    if dim is not None:
        start, stop = 0 if level == len(held) - 1 else held[level + 1][name][dim], held[level][name][dim]
    shape = tuple(stop - start if axis == dim else size for axis, size in enumerate(full))
    return Segment(name, level, dim, start, stop, shape)
