"""Muon at the apply: hidden matrices go along the polar factor of what all members changed, the rest by the mean.

Per segment of a hidden matrix (`optim.muon`), with u the mean as `optim.mean` has it:
x <- x - lr * orthogonal_lr * sqrt(max(1, rows / columns)) * polar(u).

Decided
- Each level's part of a matrix is made orthogonal by itself: a member of a small tier does not hold the others.
- No momentum: members' inner optimizers have theirs, and the apply stays without a state that joiners would need.
- The polar factor is that of `optim.polar`; the step is one multiplication, a rounding to fp32 and one subtraction.
  These are the same bits everywhere, and all votes are judged before the first parameter changes.
- A level without votes stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from aftermath.optim.format import ResultFormat
from aftermath.optim.layout import Part
from aftermath.optim.mean import MeanApply
from aftermath.optim.muon import hidden_matrices
from aftermath.optim.polar import exact_polar
from aftermath.optim.sparseloco import SparseLoCo
from aftermath.optim.transform import cells


class OuterMuon(MeanApply):
    """Changes a replica's own fp32 `params`, of tier `tier`, in place."""

    def __init__(self, results: ResultFormat, tier: int, params: Mapping[str, Tensor], settings: SparseLoCo) -> None:
        super().__init__(results, tier, params, settings)
        self._rate, self._hidden = settings.orthogonal_lr, frozenset(hidden_matrices(params))

    def _move(self, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        """Change a segment's own `tensor` along the mean's polar factor, if it is of a hidden matrix."""
        if part.segment.name not in self._hidden:
            super()._move(tensor, part, blocks, lr)
            return
        mean = torch.zeros(part.segment.shape, device=tensor.device)
        for number, own in cells(mean, blocks, part.blocks):
            number.copy_(own)
        rows, columns = mean.shape
        rate = lr * self._rate * math.sqrt(max(1.0, rows / columns))  # a power would be the C library's, which differ
        step = exact_polar(mean).mul(rate)
        tensor.sub_(step.float().to(tensor.device))
