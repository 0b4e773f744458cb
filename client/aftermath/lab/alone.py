"""One machine alone with AdamW or Muon: what joined machines are held against.

Decided: the gradient is made and clipped as a member makes and clips it, so that optimizers alone differ. A gradient or
a loss that is not finite changes nothing, as a member's would not.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from aftermath.lab.recipe import Recipe
from aftermath.lab.trainer import Stepped, below, fits, on_cpu, take_weights
from aftermath.model.documents import CheckpointError
from aftermath.model.llama import Llama
from aftermath.optim.clip import NonFiniteGradient, clip_gradients, refuse_beyond
from aftermath.optim.muon import Muon, MuonSettings
from aftermath.train.replica import accumulate

_WEIGHTS, _OPTIMIZER = "weights/", "optimizer/"
_KEPT = ({"exp_avg", "exp_avg_sq", "step"}, {"momentum"}, {"count", "first", "second"})
"""What is remembered of a parameter: by AdamW, and by Muon of a matrix and of the rest."""


class Alone:
    """A model and its optimizer. `rate` is the learning rate of a step."""

    def __init__(self, model: Llama, optimizer: torch.optim.Optimizer, recipe: Recipe) -> None:
        self._model, self._optimizer = model, optimizer
        self._rate: Callable[[int], float] = recipe.rate
        self._micro, self._clip = recipe.micro_batch, recipe.clip
        self._params = dict(model.named_parameters())

    def step(self, step: int, shares: Sequence[Tensor], accepted: Sequence[bool]) -> Stepped:
        """One step on the one share."""
        (sequences,) = shares
        self._model.zero_grad(set_to_none=True)
        try:
            loss = accumulate(self._model, sequences, self._micro, threading.Event())
            grads = {name: p.grad for name, p in self._params.items() if p.grad is not None}
            if self._clip is not None:
                clip_gradients(grads, self._clip)
            refuse_beyond(grads, torch.finfo(torch.float32).max)
        except NonFiniteGradient as error:
            return Stepped([None], left_out=(error.message,))
        if not math.isfinite(loss):
            return Stepped([None], left_out=(f"the loss is {loss}",))
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(step)
        self._optimizer.step()
        self._model.zero_grad(set_to_none=True)
        return Stepped([loss])

    def settle(self) -> None:
        """Nothing is under way."""

    def check(self) -> None:
        """There is nothing to compare with."""

    def models(self) -> Mapping[int, Llama]:
        """The one."""
        return {self._model.tier: self._model}

    def state(self) -> dict[str, Tensor]:
        """Weights, and what the optimizer remembers of each."""
        kept = {
            f"{key}/{name}": torch.as_tensor(value)
            for name, parameter in self._params.items()
            for key, value in self._optimizer.state.get(parameter, {}).items()
        }
        return on_cpu(self._params, _WEIGHTS) | on_cpu(kept, _OPTIMIZER)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there. Raises CheckpointError if it does not fit."""
        kept: dict[str, dict[str, Tensor | int]] = {}
        for path, tensor in below(state, _OPTIMIZER).items():
            key, _, name = path.partition("/")
            if key not in set().union(*_KEPT) or name not in self._params:
                raise CheckpointError(f"the saved state is not of this optimizer: {path}", "name another --out")
            kept.setdefault(name, {})[key] = self._restored(path, tensor, self._params[name])
        take_weights(self._params, below(state, _WEIGHTS))
        for name in self._params if kept else ():
            if kept.get(name, {}).keys() not in _KEPT:
                raise CheckpointError(f"the saved state lacks what the optimizer keeps of {name}", "name another --out")
        for name, values in kept.items():
            self._optimizer.state[self._params[name]] = values

    def _restored(self, path: str, kept: Tensor, parameter: Tensor) -> Tensor | int:
        """A number as it was, or a tensor where its parameter is; AdamW counts in a tensor, on the CPU."""
        if kept.ndim == 0 and kept.dtype == torch.int64:
            return int(kept)
        if kept.ndim == 0 and bool(torch.isfinite(kept)):
            return kept.clone()
        if not fits(kept, parameter):
            raise CheckpointError(f"the saved state does not fit this optimizer: {path}", "name another --out")
        return kept.to(parameter.device, copy=True)


def optimizer_for(model: Llama, recipe: Recipe) -> torch.optim.Optimizer:
    """AdamW or Muon, as the recipe says."""
    params, numbers = dict(model.named_parameters()), recipe.numbers
    if recipe.optimizer == "muon":
        return Muon(params, recipe.schedule.base_lr, MuonSettings())
    return torch.optim.AdamW(
        params.values(),
        lr=recipe.schedule.base_lr,
        betas=(numbers.beta1, numbers.beta2),
        eps=numbers.eps,
        weight_decay=numbers.weight_decay,
        fused=False,
    )
