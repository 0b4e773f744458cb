"""Train on one machine with AdamW or Muon: the baseline of all comparisons.

Gradients are computed and clipped like a member's, so that only the optimizers differ. A gradient
or loss that is not finite changes nothing. Balance vectors of experts follow `optim.moe_bias`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name

import torch
from torch import Tensor

from aftermath.lab.recipe import Recipe
from aftermath.lab.trainer import Stepped, below, on_cpu, take_weights
from aftermath.model.network import LanguageModel
from aftermath.optim.gradient_clip import NonFiniteGradient, clip_gradients, refuse_beyond
from aftermath.optim.moe_bias import balance, learnt
from aftermath.optim.moments import moments, take_moments
from aftermath.optim.muon import vector_rate
from aftermath.replica.options import PLAIN, Arithmetic
from aftermath.replica.passes import Passes
from aftermath.replica.replica import accumulate

_WEIGHTS = "weights/"
_OPTIMIZER = "optimizer/"


class SingleReplica:
    """A model and its optimizer. `rate` is the learning rate of a step."""

    def __init__(
        self,
        model: LanguageModel,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._rate: Callable[[int], float] = recipe.rate
        self._micro = recipe.micro_batch
        self._clip = recipe.settings.clip
        self._params = dict(model.named_parameters())
        self._balances = model.config.balances
        self._learnt = learnt(self._params, self._balances)
        self._passes = Passes(model, arithmetic)

    def step(self, step: int, shares: Sequence[Tensor], accepted: Sequence[bool]) -> Stepped:
        """Train one step on the only share."""
        (sequences,) = shares
        self._model.zero_grad(set_to_none=True)
        try:
            loss = float(accumulate(self._passes, sequences, self._micro, threading.Event()))
            grads = {name: p.grad for name, p in self._learnt.items() if p.grad is not None}
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
        balance(self._params, self._balances, vector_rate(self._optimizer))
        self._model.zero_grad(set_to_none=True)
        return Stepped([loss])

    def settle(self) -> None:
        """Do nothing: no result is ever delayed."""

    def check(self) -> None:
        """Do nothing: there is no second replica."""

    def models(self) -> Mapping[int, LanguageModel]:
        """Return the model by its tier."""
        return {self._model.tier: self._model}

    def state(self) -> dict[str, Tensor]:
        """Return copies of the weights and of the optimizer's moments."""
        return on_cpu(self._params, _WEIGHTS) | on_cpu(
            moments(self._optimizer, self._learnt), _OPTIMIZER
        )

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned. Raises CheckpointError or BadState on a mismatch."""
        take_weights(self._params, below(state, _WEIGHTS))
        take_moments(self._optimizer, self._learnt, below(state, _OPTIMIZER))


def optimizer_for(model: LanguageModel, recipe: Recipe) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe. Each step sets its rate."""
    params = learnt(dict(model.named_parameters()), model.config.balances)
    build: Callable[..., torch.optim.Optimizer] = resolve_name(recipe.settings.ENGINE)
    return build(params, recipe.settings)
