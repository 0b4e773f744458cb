"""One peer's votes on one level, in the two forms that they are counted in.

Decided
- A vote has a position of `optim.layout`, beside its value. Where a format keeps every number of every block, on the
  lattice, votes stay the digits that the wire has, a byte for each number in its place, and a shift for each block:
  peers who send everything differ in where a number happens to be zero, so that each had positions of its own.
- Whoever wants them as positions and values gets them so, made when first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from aftermath.optim.layout import LevelLayout


@dataclass(frozen=True)
class Votes:
    """One peer's votes on one level: distinct coefficients in ascending entry order of the wire."""

    level: int
    positions: Tensor  # int64 [n], positions of `optim.layout`; all are where the payload was read
    values: Tensor
    """Signs: int8 [n] in {-1, +1}. Floats: fp32 [n], finite and not zero. On the lattice, in multiples of its smallest
    value and not zero: int64 [n], or int8 [n] that `shifts` moves to the left.
    """
    shifts: Tensor | None = None  # uint8 [n]

    @property
    def kind(self) -> torch.dtype:
        """Of the values, as they count."""
        return self.values.dtype if self.shifts is None else torch.int64

    def multiples(self) -> Tensor:
        """A copy of values on the lattice, int64 [n]."""
        whole = self.values.to(torch.int64, copy=True)
        return whole if self.shifts is None else whole.bitwise_left_shift_(self.shifts)


class WholeVotes(Votes):
    """The votes of a result that has a digit for every number of a level."""

    digits: tuple[Tensor, ...]
    """By group int8 [blocks, numbers] in {0, +-1, +-3}, on the CPU: 0 is no vote."""
    moved: tuple[Tensor, ...]
    """By group uint8 [blocks, 1]: how far a block's are moved to the left, in multiples of the smallest value."""
    _layout: LevelLayout

    def __init__(self, level: int, digits: Sequence[Tensor], moved: Sequence[Tensor], layout: LevelLayout) -> None:
        vars(self).update(level=level, digits=tuple(digits), moved=tuple(moved), _layout=layout)

    @property
    def kind(self) -> torch.dtype:
        """As of others on the lattice."""
        return torch.int64

    @cached_property
    def positions(self) -> Tensor:
        """Those of numbers with a vote."""
        places = [
            torch.arange(group.base, group.base + group.blocks * group.block).view(group.blocks, group.block)
            for group in self._layout.groups
        ]
        return self._voted(places)

    @cached_property
    def values(self) -> Tensor:
        """Their digits."""
        return self._voted(self.digits)

    @cached_property
    def shifts(self) -> Tensor:
        """And what moves them."""
        return self._voted([own.expand_as(of) for own, of in zip(self.moved, self.digits, strict=True)])

    def _voted(self, per_group: Sequence[Tensor]) -> Tensor:
        """Of the numbers with a vote, what there is for all by group, in the wire's order."""
        return self._layout.canonical(per_group)[self._layout.canonical(self.digits) != 0]
