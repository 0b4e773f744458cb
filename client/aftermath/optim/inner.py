"""The private step of SparseLoCo: some steps of the member's own optimizer, and how far they went.

Decided
- The share is cut into so many parts as there are inner steps (fewer if it has fewer sequences), and each is one step
  of AdamW or Muon at the round's learning rate. The pseudo-gradient is start - end.
- Moments stay from round to round; they are the member's own, and nobody else has to know them. They are kept with the
  replica, and a share that was given up or refused leaves them as they were before it (`optim.inner_optimizer`).
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
from aftermath.optim.inner_optimizer import InnerOptimizer, MakeInner, rate_of_vectors
from aftermath.optim.parts import Backward, PseudoGradient
from aftermath.optim.private_blocks import BlockSpan
from aftermath.optim.sparseloco import SparseLoCo

_LARGEST_GRADIENT = 1e19  # the square of a larger one is beyond fp32: the moment would stay infinite, and learn nothing


class InnerSteps:
    """Makes pseudo-gradients of a replica's own fp32 `params`; `ahead` applies its last result at a rate."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        settings: SparseLoCo,
        ahead: Callable[[float], None],
        balances: Balances = nothing_balances,
        inner: MakeInner = InnerOptimizer,
    ) -> None:
        self._params, self._settings, self._ahead = dict(params), settings, ahead
        self._learnt, self._balances = learnt(params, balances), balances
        self._inner = inner(self._learnt, settings)

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Train on the share, part by part."""
        self._inner.begin()
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
            self._inner.undo()
            raise
        else:
            self._inner.end()
        finally:
            with torch.no_grad():
                for name, tensor in shared.items():
                    self._params[name].detach().copy_(tensor)
        return PseudoGradient(moved, 1.0, loss)

    def _copies(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._params.items()}

    def _train(self, sequences: Tensor, backward: Backward, lr: float) -> float:
        """All inner steps; the mean loss."""
        total = 0.0
        for part in sequences.tensor_split(min(self._settings.inner_steps, len(sequences))):
            for tensor in self._params.values():
                tensor.grad = None
            total += backward(part) * len(part)
            grads = {name: tensor.grad for name, tensor in self._learnt.items() if tensor.grad is not None}
            clip = self._settings.clip
            factors = () if clip is None else clip_gradients(grads, clip)
            refuse_beyond(grads, _LARGEST_GRADIENT)
            self._inner.step(lr, factors)
            balance(self._params, self._balances, rate_of_vectors(lr, self._settings))
        return total / len(sequences)

    def remembered(self) -> dict[str, Tensor]:
        """The moments."""
        return self._inner.remembered()

    def state(self) -> dict[str, Tensor]:
        """Copies of them."""
        return self._inner.state()

    def sizes(self) -> dict[str, int]:
        """Of the moments."""
        return self._inner.sizes()

    def digests(self) -> list[bytes]:
        """Of their blocks."""
        return self._inner.digests()

    def block(self, place: BlockSpan) -> bytes:
        """One of them."""
        return self._inner.block(place)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over the moments. Raises BadState, leaving all as it was, unless they are of this optimizer."""
        self._inner.restore(state)

    def reset(self) -> None:
        """Begin without moments."""
        self._inner.reset()
