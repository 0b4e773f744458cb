"""Muon at the apply: hidden matrices step along the polar factor of the mean.

With u the mean of `optim.sparseloco_apply`, a segment of a hidden matrix changes by
x <- x - lr * orthogonal_lr * sqrt(max(1, rows / columns)) * polar(u). All other parameters
subtract u. A level without votes does not change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aftermath.model.levels import Segment
from aftermath.optim.integer_polar import exact_polar
from aftermath.optim.layout import LevelLayout, Part
from aftermath.optim.level_kernels import LevelTensors, tensors_of
from aftermath.optim.level_votes import Votes
from aftermath.optim.muon import hidden_matrices
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.sparseloco_apply import MeanApply
from aftermath.optim.transform import cells
from aftermath.rules.sparseloco import SparseLoCo

_AT_ONCE = {"cpu": 1 << 23, "cuda": 1 << 24}
"""Numbers in the queue: enough matrices for all threads, or to keep a GPU busy."""


class OuterMuon(MeanApply):
    """Changes a replica's fp32 `params`, of tier `tier`, in place."""

    # Each level's part of a matrix is orthogonalised separately, because members of small tiers do
    # not hold the other levels.
    def __init__(
        self, results: ResultFormat, tier: int, params: Mapping[str, Tensor], settings: SparseLoCo
    ) -> None:
        super().__init__(results, tier, params, settings)
        self._rate = settings.orthogonal_lr
        self._hidden = frozenset(hidden_matrices(params))
        self._waiting: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Segments and their means, longer edge as columns, by the means' shape."""

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round: see `MeanApply.apply`."""
        super().apply(results, lr)
        self._turn(lr)

    def _move(self, tensor: Tensor, part: Part, blocks: Tensor, lr: float) -> None:
        """Change a segment's `tensor`, or queue it until `_turn` if it is a hidden matrix."""
        if part.segment.name not in self._hidden:
            super()._move(tensor, part, blocks, lr)
            return
        mean = torch.zeros(part.segment.shape, device=tensor.device)
        for number, step in cells(mean, blocks, part.blocks):
            number.copy_(step)
        self.move_by(tensor, part.segment, mean, lr)

    def move_by(self, tensor: Tensor, segment: Segment, step: Tensor, lr: float) -> None:
        """Change a segment's `tensor`, or queue it until `finish` if it is a hidden matrix."""
        if segment.name not in self._hidden:
            super().move_by(tensor, segment, step, lr)
            return
        self._wait(tensor, step)
        if self._waits_for() >= _AT_ONCE.get(tensor.device.type, _AT_ONCE["cpu"]):
            self._turn(lr)

    def finish(self, lr: float) -> None:
        """Change the queued matrices."""
        self._turn(lr)

    def _table(self, layout: LevelLayout) -> LevelTensors:
        """Return a table that stores the means of hidden matrices and changes all other tensors."""
        tensors = tensors_of(layout, self._params)
        hidden = [part.segment.name in self._hidden for part in layout.parts]
        for number in (number for number, is_hidden in enumerate(hidden) if is_hidden):
            mean = torch.empty(tensors[number].shape, device=self._device)
            self._wait(tensors[number], mean)
            tensors[number] = mean
        return LevelTensors(layout, tensors, stores=hidden)

    def _wait(self, tensor: Tensor, mean: Tensor) -> None:
        """Queue a segment and its mean until `_turn`."""
        rows, columns = mean.shape[-2:]
        for matrix, own_mean in zip(
            tensor.view(-1, rows, columns), mean.view(-1, rows, columns), strict=True
        ):
            turned = own_mean.mT if rows > columns else own_mean
            self._waiting[min(rows, columns), max(rows, columns)].append((matrix, turned))

    def _waits_for(self) -> int:
        return sum(len(pairs) * short * long for (short, long), pairs in self._waiting.items())

    def _turn(self, lr: float) -> None:
        """Change the queued segments along the polar factors of their means."""
        at_once = _AT_ONCE.get(self._device.type, _AT_ONCE["cpu"])
        for (short, long), pairs in self._waiting.items():
            step = max(1, at_once // (short * long))
            for first in range(0, len(pairs), step):
                self._turn_some(pairs[first : first + step], lr)
        self._waiting.clear()

    def _turn_some(self, pairs: Sequence[tuple[Tensor, Tensor]], lr: float) -> None:
        factors = exact_polar(torch.stack([mean for _, mean in pairs]))
        for (tensor, _), factor in zip(pairs, factors, strict=True):
            rows, columns = tensor.shape
            # math.sqrt is exactly rounded. math.pow would depend on the C library.
            rate = lr * self._rate * math.sqrt(max(1.0, rows / columns))
            tensor.sub_((factor.mT if rows > columns else factor).mul(rate).to(tensor.device))
