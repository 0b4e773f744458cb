"""The private step of DisTrO: one gradient of the share at look-ahead weights.

The parameters move to x - lr sign(residual) for the backward pass, and are restored exactly, also
after an error. The pseudo-gradient is lr times the gradient, clipped by its global norm. Balance
vectors get their load errors instead (`optim.moe_bias`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from aftermath.optim.gradient_clip import clip_gradients, finite
from aftermath.optim.interfaces import Backward, BadState, PseudoGradient
from aftermath.optim.moe_bias import Balances, learnt, load_error, nothing_balances
from aftermath.optim.rounding import to_fp32

GoAhead = Callable[[Mapping[str, Tensor], float], None]
"""Changes parameters by -rate times the signs of the residual."""
_PART_OF_A_GPU = 16  # saved parameters may take 1/16 of a GPU's memory


class GradientStep:
    """Makes pseudo-gradients of fp32 `params`. `clip` is the largest norm, or None."""

    def __init__(
        self,
        params: Mapping[str, Tensor],
        go_ahead: GoAhead,
        clip: float | None,
        balances: Balances = nothing_balances,
    ) -> None:
        self._params = params
        self._go_ahead = go_ahead
        self._clip = clip
        self._balances = balances

    def make(
        self, sequences: Tensor, backward: Backward, lr: float, ahead_lr: float, travelling: bool
    ) -> PseudoGradient:
        """Compute the gradient at the look-ahead weights. It stays in the parameters' `grad`."""
        del travelling  # the residual includes an unapplied result, and so does the look-ahead
        with self.lookahead(ahead_lr):
            loss = finite(backward(sequences))
        grads = {name: p.grad for name, p in self._params.items() if p.grad is not None}
        if self._clip is not None:
            clip_gradients(learnt(grads, self._balances), self._clip)
        errors = {
            name: load_error(counts) for name, counts in grads.items() if self._balances(name)
        }
        return PseudoGradient(grads | errors, to_fp32(lr), loss, (loss,))

    @contextmanager
    def lookahead(self, lr: float) -> Iterator[None]:
        """Set the parameters to x - lr sign(residual), and restore them exactly on exit."""
        rate = to_fp32(lr)
        place = _place(self._params)
        saved = {
            name: tensor.detach().to(place, copy=True) for name, tensor in self._params.items()
        }
        try:
            with torch.no_grad():
                self._go_ahead(self._params, rate)
            yield
        finally:
            with torch.no_grad():
                for name, tensor in saved.items():
                    self._params[name].detach().copy_(tensor)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return an empty state: GradientStep keeps none."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Return an empty state."""
        return {}

    def sizes(self) -> dict[str, int]:
        """Return no sizes."""
        return {}

    def digests(self) -> list[bytes]:
        """Return no digests."""
        return []

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Raise BadState if `state` is not empty."""
        if state:
            raise BadState(f"the optimizer state has an unexpected tensor {min(state)}")

    def reset(self) -> None:
        """Do nothing: there is no state."""


def _place(params: Mapping[str, Tensor]) -> torch.device:
    """Return the device to save parameters on: their GPU if they fit in a small part of it, else
    the CPU.
    """
    device = next(iter(params.values())).device
    if device.type != "cuda" or not torch.cuda.is_available():
        return torch.device("cpu")
    size = sum(tensor.nbytes for tensor in params.values())
    fits = size * _PART_OF_A_GPU <= torch.cuda.get_device_properties(device).total_memory
    return device if fits else torch.device("cpu")
