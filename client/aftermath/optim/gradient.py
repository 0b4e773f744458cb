"""The private step of DisTrO: one gradient of the share, at the weights as they will nearly be.

Decided, as upstream
- Look ahead (x - lr sign(residual)), gradient, look back. The look-ahead returns to saved bits, also on an error.
- The gradient is clipped to its own global norm, and counts times the learning rate. Beside it, vectors that even out
  experts get their loads' errors (`optim.balance`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from aftermath.model.segments import view
from aftermath.optim.balance import Balances, learnt, load_error, nothing_balances
from aftermath.optim.clip import clip_gradients
from aftermath.optim.layout import Part
from aftermath.optim.parts import Backward, BadState, PseudoGradient
from aftermath.optim.private_blocks import BlockSpan
from aftermath.optim.rounding import to_fp32
from aftermath.optim.transform import subtract

Directions = Callable[[], Iterator[tuple[Part, Tensor]]]
"""The signs of what a member has not sent yet, segment by segment: blocks [n, h, w]."""


class GradientStep:
    """Makes pseudo-gradients of a replica's own fp32 `params`; `clip` is the largest norm, or None."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        directions: Directions,
        clip: float | None,
        balances: Balances = nothing_balances,
    ) -> None:
        self._params, self._directions, self._clip, self._balances = params, directions, clip, balances

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """The gradient at the looked-ahead weights, in the parameters' `grad`. The residual has what travels in it."""
        del travelling
        with self.lookahead(ahead_lr):
            loss = backward(sequences)
        grads = {name: p.grad for name, p in self._params.items() if p.grad is not None}
        if self._clip is not None:
            clip_gradients(learnt(grads, self._balances), self._clip)
        errors = {name: load_error(counts) for name, counts in grads.items() if self._balances(name)}
        return PseudoGradient(grads | errors, to_fp32(lr), loss)

    @contextmanager
    def lookahead(self, lr: float) -> Iterator[None]:
        """Inside, the parameters are x - lr sign(residual); afterwards, even after an error, exactly what they were."""
        rate = to_fp32(lr)
        saved = {name: tensor.detach().to("cpu", copy=True) for name, tensor in self._params.items()}  # spares a GPU
        try:
            with torch.no_grad():
                for part, signs in self._directions():
                    subtract(view(self._params, part.segment), signs.mul_(rate), part.blocks)
            yield
        finally:
            with torch.no_grad():
                for name, tensor in saved.items():
                    self._params[name].detach().copy_(tensor)

    def remembered(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def sizes(self) -> dict[str, int]:
        """Of nothing."""
        return {}

    def digests(self) -> list[bytes]:
        """Of nothing."""
        return []

    def block(self, place: BlockSpan) -> bytes:
        """There is none."""
        del place
        return b""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Raises BadState if there is anything."""
        if state:
            raise BadState(f"an optimizer's state has too much of {min(state)}")

    def reset(self) -> None:
        """Nothing is remembered."""
