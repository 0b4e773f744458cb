"""How the matrices of an architecture are cut over ranks that compute one micro-batch together: what it says of itself.

Decided
- What a tier may have less of is what ranks may share, since each part of it computes by itself: heads and hidden
  units. So where a matrix has a dimension of these for tiers, that is the one that ranks cut.
- A block between two sums, as attention and a feed-forward are, needs no word of the network: its first matrices take
  what every rank has, and what the last one makes is added up. Where more goes in than a matrix's input (a key that
  heads share, the weights of experts), the network names the places: modules that do nothing but for ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Dims = Mapping[str, Literal[0, 1]]
"""The last parts of the names of matrices, `*` for any, and which dimension of them is cut."""


@dataclass(frozen=True)
class TensorPlan:
    """A tier's network, cut."""

    dims: Dims
    """Of what comes into a block the output (0), of what leaves it the input (1)."""
    divided: Mapping[str, Sequence[int]]
    """What is cut into equal parts, in words, and how many of it layers have."""
    partial: tuple[str, ...] = ()
    """Parameters that are on every rank and see only that rank's heads: their gradients are added up."""
    inner: Dims = field(default_factory=dict)
    """Matrices between a `spread` and a `summed` place, which compute with what their rank has."""
    spread: tuple[str, ...] = ()
    """Modules through which what every rank has goes to each rank's part: gradients are added up there."""
    summed: tuple[str, ...] = ()
    """Modules through which each rank's part of a sum goes: it is added up there."""
