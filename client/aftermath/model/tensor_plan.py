"""How the matrices of an architecture are cut over ranks that compute one micro-batch together: what it says of itself.

Decided: what a tier may have less of is what ranks may share, since each part of it computes by itself: heads and
hidden units. So where a matrix has a dimension of these for tiers, that is the one that ranks cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TensorPlan:
    """A tier's network, cut. Names are the last parts of those of its modules."""

    columns: tuple[str, ...]
    """Of what comes into a block: a rank has its heads and hidden units of the output."""
    rows: tuple[str, ...]
    """Of what leaves a block: a rank has those of the input, and the ranks' outputs are added up."""
    partial: tuple[str, ...]
    """Patterns of parameters that are on every rank and see only that rank's heads: their gradients are added up."""
    divided: Mapping[str, Sequence[int]]
    """What is cut into equal parts, in words, and how many of it each layer has."""


def plan_of(
    dims: Mapping[str, Literal[0, 1]], divided: Mapping[str, Sequence[int]], partial: tuple[str, ...] = ()
) -> TensorPlan:
    """The plan that follows from which dimension of which tensor has heads or hidden units."""
    weights = {name.removesuffix(".weight"): dim for name, dim in dims.items() if name.endswith(".weight")}
    columns, rows = (tuple(name for name, dim in weights.items() if dim == wanted) for wanted in (0, 1))
    return TensorPlan(columns, rows, partial, divided)
