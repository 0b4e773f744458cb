"""One peer's votes on one level, in two forms.

`Votes` has a position (`optim.layout`) per vote. `DenseVotes` is for dense results, which keep
every value. It has a digit per value instead of positions, which would take more memory.
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
    """One peer's votes on one level: distinct coefficients in ascending wire order."""

    level: int
    # int64 [n], positions of `optim.layout`; all tensors are on the decoding device
    positions: Tensor
    values: Tensor
    """Values. Signs: int8 [n] in {-1, +1}. Floats: fp32 [n], finite and nonzero. Lattice: nonzero
    multiples of its smallest value, int64 [n], or int8 [n] shifted left by `shifts`.
    """
    shifts: Tensor | None = None  # uint8 [n]

    @property
    def kind(self) -> torch.dtype:
        """Return the kind of votes as a dtype: int8 signs, fp32 floats, int64 lattice values."""
        return self.values.dtype if self.shifts is None else torch.int64

    def multiples(self) -> Tensor:
        """Return a copy of lattice values, int64 [n]."""
        whole = self.values.to(torch.int64, copy=True)
        return whole if self.shifts is None else whole.bitwise_left_shift_(self.shifts)


class DenseVotes(Votes):
    """Dense votes: a digit for every value of a level."""

    digits: tuple[Tensor, ...]
    """Digits by group: int8 [blocks, numbers] in {0, +-1, +-3}, on the CPU. 0 is no vote."""
    group_shifts: tuple[Tensor, ...]
    """Left shifts by group: uint8 [blocks, 1], in multiples of the smallest value."""
    _layout: LevelLayout

    def __init__(
        self,
        level: int,
        digits: Sequence[Tensor],
        group_shifts: Sequence[Tensor],
        layout: LevelLayout,
    ) -> None:
        vars(self).update(
            level=level, digits=tuple(digits), group_shifts=tuple(group_shifts), _layout=layout
        )

    @property
    def kind(self) -> torch.dtype:
        """Return the dtype of lattice values."""
        return torch.int64

    @cached_property
    def positions(self) -> Tensor:
        """Return the positions of numbers with a vote, computed at first use."""
        places = [
            torch.arange(group.base, group.base + group.blocks * group.block).view(
                group.blocks, group.block
            )
            for group in self._layout.groups
        ]
        return self._voted(places)

    @cached_property
    def values(self) -> Tensor:
        """Return the digits of numbers with a vote."""
        return self._voted(self.digits)

    @cached_property
    def shifts(self) -> Tensor:
        """Return the left shift of each vote, uint8."""
        return self._voted(
            [
                exponents.expand_as(digits)
                for exponents, digits in zip(self.group_shifts, self.digits, strict=True)
            ]
        )

    def _voted(self, per_group: Sequence[Tensor]) -> Tensor:
        """Return the numbers that have a vote from per-group tensors, in wire order."""
        return self._layout.canonical(per_group)[self._layout.canonical(self.digits) != 0]
