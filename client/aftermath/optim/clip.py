"""Gradient clipping by the global norm.

Decided: as upstream, the fp32 L2 norm over all of a member's tensors, scale max/(norm + 1e-6) when above. Squares of
finite gradients can exceed fp32 from about 1e19 on; then the norm is taken of the gradients times a power of two. A
gradient that is NaN or infinite has no direction to keep, so it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from aftermath.base.errors import AftermathError

# The largest fp32 times this is about 3e8, and the smallest gradient that can overflow the norm of 2^40 numbers is then
# still far from vanishing when it is squared.
_SHRINK = 2.0**-100
LARGEST_RESIDUAL = 1e30  # beyond it a residual or its transform could overflow fp32


class NonFiniteGradient(AftermathError):
    """A gradient or a loss is NaN, infinite or too large to add up; nothing was learnt from it."""


class Diverged(AftermathError):
    """A training learns nothing any more: its loss or its weights are not finite."""

    code = "diverged"


def finite(loss: float | Tensor) -> float:
    """The loss. Raises NonFiniteGradient: what is announced has its loss, and the rest must not be learnt from."""
    number = float(loss)
    if math.isfinite(number):
        return number
    raise NonFiniteGradient(f"its loss is {number}", "Lower the learning rate if it happens again")


def clip_unread(tensors: list[Tensor], max_norm: float | None) -> Tensor:
    """Clip gradients as `clip_gradients` does, and return a number on their device that tells whether they were finite.

    It is their norm, or without `max_norm` their largest magnitude. Nothing waits for the device.
    """
    if max_norm is None:
        return torch.stack(torch._foreach_norm(tensors, math.inf)).amax()
    norm = torch.nn.utils.get_total_norm(tensors)
    torch._foreach_mul_(tensors, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def clip_gradients(grads: Mapping[str, Tensor], max_norm: float) -> tuple[float, ...]:
    """Scale fp32 gradients in place so that their global L2 norm is at most `max_norm` (> 0); by which factors.

    Raises NonFiniteGradient, naming the tensor and leaving all as they were, if one holds NaN or infinity.
    """
    tensors = list(grads.values())
    norm = float(torch.nn.utils.get_total_norm(tensors))
    if math.isfinite(norm):
        factors = (max_norm / (norm + 1e-6),) if norm > max_norm else ()
        scale(tensors, factors)
        return factors
    refuse_beyond(grads, torch.finfo(torch.float32).max)
    scale(tensors, [_SHRINK])
    small = float(torch.nn.utils.get_total_norm(tensors))
    rest = min(max_norm / small, 1 / _SHRINK)
    scale(tensors, [rest])
    return _SHRINK, rest


def scale(gradients: list[Tensor], factors: Iterable[float]) -> None:
    """Multiply gradients in place by one factor after the other."""
    for factor in factors:
        torch._foreach_mul_(gradients, factor)


def refuse_beyond(grads: Mapping[str, Tensor], largest: float) -> None:
    """Raises NonFiniteGradient, naming the tensor, if a number is NaN or its magnitude above `largest`."""
    if _all_within(list(grads.values()), largest):
        return
    for name, gradient in grads.items():
        low, high = (float(bound) for bound in torch.aminmax(gradient))
        if not (low >= -largest and high <= largest):
            raise NonFiniteGradient(
                f"the gradient of {name} is not finite or beyond {largest:.3g}",
                "This round's result is left out; lower the learning rate if it happens again",
            )


def _all_within(tensors: list[Tensor], largest: float) -> bool:
    """Whether all numbers of tensors on one GPU are; it is asked once, as each answer waits for the GPU."""
    if not tensors or any(tensor.device.type != "cuda" for tensor in tensors):
        return False
    return bool(torch.stack(torch._foreach_norm(tensors, math.inf)).amax() <= largest)  # NaN if one is
