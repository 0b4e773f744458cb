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

from aftermath.optim.balance import Balances, learnt, load_error, nothing_balances
from aftermath.optim.clip import clip_gradients, finite
from aftermath.optim.parts import Backward, BadState, PseudoGradient
from aftermath.optim.private_blocks import BlockSpan
from aftermath.optim.rounding import to_fp32

GoAhead = Callable[[Mapping[str, Tensor], float], None]
"""Changes parameters by -rate times the signs of what a member has not sent yet."""
_PART_OF_A_GPU = 16  # the part of its memory that saved parameters may take


class GradientStep:
    """Makes pseudo-gradients of a replica's own fp32 `params`; `clip` is the largest norm, or None."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        go_ahead: GoAhead,
        clip: float | None,
        balances: Balances = nothing_balances,
    ) -> None:
        self._params, self._go_ahead, self._clip, self._balances = params, go_ahead, clip, balances

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """The gradient at the looked-ahead weights, in the parameters' `grad`. The residual has what travels in it."""
        del travelling
        with self.lookahead(ahead_lr):
            loss = finite(backward(sequences))
        grads = {name: p.grad for name, p in self._params.items() if p.grad is not None}
        if self._clip is not None:
            clip_gradients(learnt(grads, self._balances), self._clip)
        errors = {name: load_error(counts) for name, counts in grads.items() if self._balances(name)}
        return PseudoGradient(grads | errors, to_fp32(lr), loss)

    @contextmanager
    def lookahead(self, lr: float) -> Iterator[None]:
        """Inside, the parameters are x - lr sign(residual); afterwards, even after an error, exactly what they were."""
        rate = to_fp32(lr)
        place = _place(self._params)
        saved = {name: tensor.detach().to(place, copy=True) for name, tensor in self._params.items()}
        try:
            with torch.no_grad():
                self._go_ahead(self._params, rate)
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


def _place(params: Mapping[str, Tensor]) -> torch.device:
    """Where copies of parameters are kept: where they are, unless that takes too much of a GPU."""
    device = next(iter(params.values())).device
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.device("cpu")
    size = sum(tensor.nbytes for tensor in params.values())
    fits = size * _PART_OF_A_GPU <= torch.cuda.get_device_properties(device).total_memory
    return device if fits else torch.device("cpu")
