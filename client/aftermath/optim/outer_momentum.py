"""Apply Nesterov momentum of the mean, exactly and equally on every replica.

With m the mean of `optim.sparseloco_apply`: v <- mu * v + m, then x <- x - outer_lr * (m + mu * v).
With `orthogonal_lr`, hidden matrices step along the polar factor of m + mu * v
(`optim.outer_muon`). A level without votes does not change, and neither does its momentum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aftermath.model.levels import MomentumSegment, Segment
from aftermath.model.segments import view
from aftermath.optim.lattice import SMALLEST
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.sparseloco_apply import MeanApply
from aftermath.rules.sparseloco import SparseLoCo

# v and m are int64 multiples of the lattice's smallest value 2^LEAST (`optim.lattice`), so all
# operations on them are exact on every device. There are three roundings per number:
# - m: `MeanApply` rounds the mean to fp32 with a rate of 1, equally on CPUs and GPUs. Its multiple
#   is rounded to an integer, halves to even.
# - mu is the nearest multiple of 1/1024, and mu * v is rounded toward zero. So the momentum of a
#   number that nobody sends falls to zero.
# - The step is (m + mu * v) in float64, where it is an exact integer, times outer_lr * 2^LEAST,
#   rounded to fp32. Then x gets one subtraction.
#
# Bounds: |m| <= 3 * 2^43 (the cap of a vote, `lattice.LARGEST`) and mu <= 1014/1024. So |v| <= 2^52
# implies mu * |v| + |m| <= (0.99024 + 0.00586) * 2^52 < 2^52: v stays within LARGEST_MOMENTUM.
# Every v from outside is checked against this bound. 1014 * 2^52 < 2^62 does not overflow int64.
_FRACTION_BITS = 10
FRACTION = 1 << _FRACTION_BITS
"""The momentum's factor is a multiple of 1 / FRACTION."""
_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 24}
"""Numbers per batch: what fits a core's cache, or keeps a GPU busy."""


def momentum_device(device: torch.device) -> torch.device:
    """Return the device for the momentum of parameters on `device`. MPS has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def factor_of(settings: SparseLoCo) -> int:
    """Return the momentum's factor in multiples of 1 / FRACTION."""
    return round(settings.outer_momentum * FRACTION)


class MomentumApply:
    """Applies results to a tier's fp32 `params` and their `momentum`, both in place.

    `momentum` has the tensors of `StateSchema.momentum_shapes`. `move` is the apply without
    momentum of the same settings. It subtracts the steps.
    """

    def __init__(
        self,
        results: ResultFormat,
        tier: int,
        params: Mapping[str, Tensor],
        momentum: Mapping[str, Tensor],
        settings: SparseLoCo,
        move: MeanApply,
    ) -> None:
        self._results = results
        self._tier = tier
        self._params = params
        self._momentum = momentum
        self._plain = replace(settings, outer_lr=1.0, orthogonal_lr=0.0, outer_momentum=0.0)
        self._factor = factor_of(settings)
        self._rate = settings.outer_lr * SMALLEST
        self._move = move

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: see `MeanApply.apply`."""
        # The mean of one tier's replica, negated: 0 - mean. It is dropped after the round.
        means = {name: torch.zeros_like(tensor) for name, tensor in self._params.items()}
        # This raises for invalid votes, before parameters or momentum change.
        MeanApply(self._results, self._tier, means, self._plain).apply(results, lr)
        for level in (level for level, votes in results.items() if votes):
            for part in level_layout(self._results, level).parts:
                mean = view(means, part.segment)
                self._accumulate(part.segment, mean)
                self._move.move_by(view(self._params, part.segment), part.segment, mean, lr)
        self._move.finish(lr)

    def _accumulate(self, segment: Segment, mean: Tensor) -> None:
        """Update a segment's momentum. Replace its negated fp32 mean with the step to subtract."""
        own = MomentumSegment.of(segment)
        momentum = view(self._momentum, own) if own.name in self._momentum else None
        for rows in _batches(mean):
            multiples = mean[rows].to(momentum_device(mean.device), torch.float64)
            update = multiples.mul_(-1 / SMALLEST).round_().long()
            if momentum is not None:
                total = momentum[rows]
                total.copy_(self._shrunk(total).add_(update))
                update.add_(self._shrunk(total))
            mean[rows] = update.double().mul_(self._rate).float().to(mean.device)

    def _shrunk(self, momentum: Tensor) -> Tensor:
        """Return mu * momentum, rounded toward zero."""
        product = momentum.mul(self._factor)
        # A shift rounds down, so raise negative numbers first. A division takes twice as long.
        product.add_((product >> 63).bitwise_and_(FRACTION - 1))
        return product.bitwise_right_shift_(_FRACTION_BITS)


def _batches(tensor: Tensor) -> Iterator[slice]:
    """Yield ranges of rows, each of at most `_AT_ONCE` numbers or one row."""
    row = max(1, tensor[0].numel()) if len(tensor) else 1
    step = max(1, _AT_ONCE.get(tensor.device.type, _AT_ONCE["cpu"]) // row)
    for first in range(0, len(tensor), step):
        yield slice(first, first + step)
