"""The apply of DisTrO: x <- x (1 - lr wd), then x <- x - lr sign(mean of the votes), exactly.

All signs are computed before the first parameter changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from aftermath.kernels.runtime import run_parallel
from aftermath.model.segments import view
from aftermath.optim import level_kernels
from aftermath.optim.compiled_sparse import Counted, usable
from aftermath.optim.exact_signs import MEAN_BITS, group_signs
from aftermath.optim.layout import LevelLayout, Part, level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.moe_bias import Balances, nothing_balances
from aftermath.optim.result_format import ResultFormat, Values
from aftermath.optim.rounding import to_fp32
from aftermath.optim.transform import subtract
from aftermath.optim.vote_count import check_votes


class SignApply:
    """Changes a replica's fp32 `params`, of tier `tier`, in place."""

    def __init__(
        self,
        results: ResultFormat,
        tier: int,
        params: Mapping[str, Tensor],
        weight_decay: float,
        balances: Balances = nothing_balances,
    ) -> None:
        self._format = results
        self._params = params
        self._weight_decay = weight_decay
        self._compiled = usable(params)
        self._balances = balances
        self._layouts = {
            level: level_layout(results, level) for level in range(tier, results.levels)
        }

    @torch.no_grad()
    def apply(self, results: Mapping[int, Sequence[Votes]], lr: float) -> None:
        """Apply one round. A level without votes only decays. Raises ValueError."""
        # Both factors are computed in float64 and rounded to fp32 once. Each parameter gets one
        # IEEE multiplication (with weight decay only) and one subtraction of exactly 0 or +-lr, as
        # separate operations, so nothing can be contracted.
        rate = to_fp32(lr)
        keep = to_fp32(1.0 - lr * self._weight_decay)
        if self._compiled and self._format.values is Values.SIGN:
            self._apply_compiled(
                {level: votes for level, votes in results.items() if votes}, rate, keep
            )
            return
        directions = {
            level: group_signs(votes, self._format, level, self._device(level))
            for level, votes in results.items()
            if votes
        }
        # Every replica decays the weights once per applied round, even if a level got no result.
        # So decay cannot differ between members. Balance vectors do not decay.
        if keep != 1.0:
            decaying = [
                tensor.detach() for name, tensor in self._params.items() if not self._balances(name)
            ]
            torch._foreach_mul_(decaying, keep)  # the held levels cover the whole tensors
        for level, signs in directions.items():
            self._step(self._layouts[level], signs, rate)

    def _step(self, layout: LevelLayout, directions: Sequence[Tensor], rate: float) -> None:
        """Change a level's parameters by -rate * signs, int8 [blocks, h, w] by group."""
        tensors = level_kernels.tensors_of(layout, self._params)
        if level_kernels.works(tensors[0].device):
            level_kernels.go_ahead(
                level_kernels.LevelTensors(
                    layout, tensors, [signs.float() for signs in directions]
                ),
                rate,
            )
            return
        for part, tensor in zip(layout.parts, tensors, strict=True):
            subtract(tensor, part.of(directions[part.group]).float().mul_(rate), part.blocks)

    def _apply_compiled(
        self, results: Mapping[int, Sequence[Votes]], rate: float, keep: float
    ) -> None:
        for level, votes in results.items():
            check_votes(votes, level, torch.int8)
        counted = {level: Counted(votes, self._layouts[level]) for level, votes in results.items()}
        run_parallel(
            task
            for each in counted.values()
            for task in each.sign(
                self._params, lambda part: self._kept(part, keep), rate, MEAN_BITS
            )
        )
        for level in self._layouts.keys() - results.keys():
            for part in self._layouts[level].parts:
                self._decay(view(self._params, part.segment), part, keep)

    def _decay(self, tensor: Tensor, part: Part, keep: float) -> None:
        """Apply weight decay to a segment's `tensor`."""
        if (factor := self._kept(part, keep)) != 1.0:
            tensor.mul_(factor)

    def _kept(self, part: Part, keep: float) -> float:
        return 1.0 if self._balances(part.segment.name) else keep

    def _device(self, level: int) -> torch.device:
        return view(self._params, self._layouts[level].parts[0].segment).device
