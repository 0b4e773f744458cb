"""The private step of SparseLoCo: some steps of the member's own optimizer, and how far they went.

Decided
- The share is cut into so many parts as there are inner steps (fewer if it has fewer sequences), and each is one step
  of AdamW or Muon at the round's learning rate. The pseudo-gradient is start - end.
- Moments stay from round to round; they are the member's own, and nobody else has to know them. They are kept with the
  replica, and a share that was given up or refused leaves them as they were before it.
- Gradients are clipped and refused as everywhere, each step's own. Vectors that even out experts go by their own rule
  (`optim.balance`).
- While the member's last result travels, the steps begin where its apply alone would lead: else they would go the same
  way once more. Afterwards the parameters are exactly what they were (docs/experiments.md has what this is worth).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from aftermath.optim.balance import Balances, balance, learnt, nothing_balances
from aftermath.optim.clip import LARGEST_RESIDUAL, clip_gradients, refuse_beyond
from aftermath.optim.moments import may_fuse, moment_sizes, moments, take_moments
from aftermath.optim.muon import Muon, MuonSettings, vector_rate
from aftermath.optim.parts import Backward, PseudoGradient
from aftermath.optim.sparseloco import SparseLoCo

BETAS, EPSILON = (0.9, 0.95), 1e-8
_LARGEST_GRADIENT = 1e19  # the square of a larger one is beyond fp32: the moment would stay infinite, and learn nothing


class InnerSteps:
    """Makes pseudo-gradients of a replica's own fp32 `params`; `ahead` applies its last result at a rate."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        settings: SparseLoCo,
        ahead: Callable[[float], None],
        balances: Balances = nothing_balances,
    ) -> None:
        self._params, self._settings, self._ahead = dict(params), settings, ahead
        self._learnt, self._balances = learnt(params, balances), balances
        self._optimizer = _optimizer(self._learnt, settings)

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Train on the share, part by part."""
        before = {name: tensor.clone() for name, tensor in self.remembered().items()}
        shared = self._copies()
        try:
            if travelling:
                self._ahead(ahead_lr)
            start = self._copies() if travelling else shared
            loss = self._train(sequences, backward, lr)
            with torch.no_grad():
                moved = {name: start[name] - tensor.detach() for name, tensor in self._params.items()}
            refuse_beyond(moved, LARGEST_RESIDUAL)
        except BaseException:
            take_moments(self._optimizer, self._learnt, before)
            raise
        finally:
            with torch.no_grad():
                for name, tensor in shared.items():
                    self._params[name].detach().copy_(tensor)
        return PseudoGradient(moved, 1.0, loss)

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._params.items()}

    def _train(self, sequences: Tensor, backward: Backward, lr: float) -> float:
        """All inner steps; the mean loss."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        total = 0.0
        for part in sequences.tensor_split(min(self._settings.inner_steps, len(sequences))):
            for tensor in self._params.values():
                tensor.grad = None
            total += backward(part) * len(part)
            grads = {name: tensor.grad for name, tensor in self._learnt.items() if tensor.grad is not None}
            if self._settings.clip is not None:
                clip_gradients(grads, self._settings.clip)
            refuse_beyond(grads, _LARGEST_GRADIENT)
            self._optimizer.step()
            balance(self._params, self._balances, vector_rate(self._optimizer))
        return total / len(sequences)

    def remembered(self) -> dict[str, Tensor]:
        """The moments."""
        return moments(self._optimizer, self._learnt)

    def sizes(self) -> dict[str, int]:
        """Of the moments."""
        return moment_sizes(self._optimizer, self._learnt)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over the moments. Raises BadState, leaving all as it was, unless they are of this optimizer."""
        take_moments(self._optimizer, self._learnt, state)

    def reset(self) -> None:
        """Begin without moments."""
        self._optimizer.state.clear()


def _optimizer(params: Mapping[str, Tensor], settings: SparseLoCo) -> torch.optim.Optimizer:
    """The inner optimizer; each round sets its rate."""
    if settings.inner_optimizer == "muon":
        return Muon(params, 0.0, MuonSettings(weight_decay=settings.weight_decay, betas=BETAS, epsilon=EPSILON))
    own = list(params.values())
    return torch.optim.AdamW(
        own, lr=0.0, betas=BETAS, eps=EPSILON, weight_decay=settings.weight_decay, fused=may_fuse(own)
    )
