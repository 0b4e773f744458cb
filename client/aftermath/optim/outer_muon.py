"""Muon at the apply: hidden matrices go along the polar factor of what all members changed, the rest by the mean.

Per segment of a hidden matrix (`optim.muon`), with u the mean as `optim.mean` has it:
x <- x - lr * orthogonal_lr * sqrt(max(1, rows / columns)) * polar(u).

Decided
- Each level's part of a matrix is made orthogonal by itself: a member of a small tier does not hold the others.
- No momentum: members' inner optimizers have theirs, and the apply stays without a state that joiners would need.
- The polar factor is that of `optim.polar`; the step is one multiplication and one subtraction. These are the same bits
  everywhere, and all votes are judged before the first parameter changes.
- Means of one shape, or of one transposed, are made orthogonal at once, as many as a few megabytes hold.
- A level without votes stays as it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aftermath.optim.flat import Table, tensors_of
from aftermath.optim.format import ResultFormat
from aftermath.optim.layout import LevelLayout, Part
from aftermath.optim.mean import MeanApply
from aftermath.optim.muon import hidden_matrices
from aftermath.optim.polar import exact_polar
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.optim.transform import cells
from aftermath.optim.votes import Votes

_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Entries of means that wait: a core's cache holds few, and a GPU needs many at once."""


class OuterMuon(MeanApply):
    """Changes a replica's own fp32 `params`, of tier `tier`, in place."""

    def __init__(self, results: ResultFormat, tier: int, params: Mapping[str, Tensor], settings: SparseLoCo) -> None:
        super().__init__(results, tier, params, settings)
        self._rate, self._hidden = settings.orthogonal_lr, frozenset(hidden_matrices(params))
        self._waiting: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Segments and their means, with the longer edge as columns, by the means' shape."""

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """As `MeanApply.apply`."""
        super().apply(results, lr)
        self._turn(lr)

    def _move(self, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        """Change a segment's own `tensor`, later on if it is of a hidden matrix."""
        if part.segment.name not in self._hidden:
            super()._move(tensor, part, blocks, lr)
            return
        mean = torch.zeros(part.segment.shape, device=tensor.device)
        for number, own in cells(mean, blocks, part.blocks):
            number.copy_(own)
        self._wait(tensor, mean)
        if self._waits_for() >= _AT_ONCE.get(tensor.device.type, _AT_ONCE["cpu"]):
            self._turn(lr)

    def _table(self, layout: LevelLayout) -> Table:
        """Have the means of hidden matrices stored, to be made orthogonal, and the rest changed."""
        tensors = tensors_of(layout, self._params)
        hidden = [part.segment.name in self._hidden for part in layout.parts]
        for number in (number for number, is_hidden in enumerate(hidden) if is_hidden):
            mean = torch.empty(tensors[number].shape, device=self._device)
            self._wait(tensors[number], mean)
            tensors[number] = mean
        return Table(layout, tensors, stores=hidden)

    def _wait(self, tensor: Tensor, mean: Tensor) -> None:
        """Remember a segment and its mean until `_turn`."""
        rows, columns = mean.shape[-2:]
        for matrix, own_mean in zip(tensor.view(-1, rows, columns), mean.view(-1, rows, columns), strict=True):
            turned = own_mean.mT if rows > columns else own_mean
            self._waiting[min(rows, columns), max(rows, columns)].append((matrix, turned))

    def _waits_for(self) -> int:
        return sum(len(own) * short * long for (short, long), own in self._waiting.items())

    def _turn(self, lr: float) -> None:
        """Change the segments that wait along their means' polar factors."""
        at_once = _AT_ONCE.get(self._device.type, _AT_ONCE["cpu"])
        for (short, long), own in self._waiting.items():
            step = max(1, at_once // (short * long))
            for first in range(0, len(own), step):
                self._turn_some(own[first : first + step], lr)
        self._waiting.clear()

    def _turn_some(self, own: Sequence[tuple[Tensor, Tensor]], lr: float) -> None:
        factors = exact_polar(torch.stack([mean for _, mean in own]))
        for (tensor, _), factor in zip(own, factors, strict=True):
            rows, columns = tensor.shape
            rate = lr * self._rate * math.sqrt(max(1.0, rows / columns))  # a power would be the C library's
            tensor.sub_((factor.mT if rows > columns else factor).mul(rate).to(tensor.device))
