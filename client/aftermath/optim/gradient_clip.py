"""Clip gradients by their global norm.

The norm is the fp32 L2 norm over all tensors of a member. If it exceeds `max_norm`, all gradients
are multiplied by max_norm / (norm + 1e-6). NaN and infinite gradients raise NonFiniteGradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from aftermath.base.errors import AftermathError

# Squares of gradients above about 1e19 overflow fp32. If that happens, the gradients are multiplied
# by this power of two before the norm. It turns the largest fp32 into about 3e8. The smallest
# gradient that can overflow the norm of 2^40 numbers stays large enough to be squared.
_SHRINK = 2.0**-100
LARGEST_RESIDUAL = 1e30  # beyond it a residual or its transform could overflow fp32


class NonFiniteGradient(AftermathError):
    """A gradient or loss is NaN, infinite or too large to add up. The replica is unchanged."""


class Diverged(AftermathError):
    """Training has diverged: the loss or the weights are not finite."""

    code = "diverged"


def finite(loss: float | Tensor) -> float:
    """Return the loss as a float. Raises NonFiniteGradient if it is not finite."""
    number = float(loss)
    if math.isfinite(number):
        return number
    raise NonFiniteGradient(
        f"the loss is {number}", "Lower the learning rate if this happens again"
    )


def clip_unread(tensors: list[Tensor], max_norm: float | None) -> Tensor:
    """Clip gradients without waiting for their device. Return their norm on that device.

    Without `max_norm`, only return their largest magnitude. The returned number is not finite if a
    gradient is not finite, or if the norm overflows fp32.
    """
    if max_norm is None:
        return torch.stack(torch._foreach_norm(tensors, math.inf)).amax()
    norm = torch.nn.utils.get_total_norm(tensors)
    torch._foreach_mul_(tensors, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


def clip_members_unread(tensors: Sequence[Tensor], max_norm: float | None) -> Tensor:
    """Clip stacked gradients [members, ...], each member's by its own norm: see `clip_unread`.

    Return one number per member.
    """
    rows = [tensor.reshape(len(tensor), -1) for tensor in tensors]
    if max_norm is None:
        return torch.stack([row.abs().amax(1) for row in rows]).amax(0)
    norms = torch.stack(
        [torch.linalg.vector_norm(row, dim=1) for row in rows]
    )  # [tensors, members]
    norm: Tensor = torch.linalg.vector_norm(norms, dim=0)
    factors = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for tensor in tensors:
        tensor.mul_(factors.view(-1, *[1] * (tensor.dim() - 1)))
    return norm


def clip_gradients(grads: Mapping[str, Tensor], max_norm: float) -> tuple[float, ...]:
    """Scale fp32 gradients in place to a global L2 norm of at most `max_norm` (> 0).

    Return the factors, in the order of their multiplication. Raises NonFiniteGradient with the
    tensor's name, and changes nothing, if a gradient is NaN or infinite.
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
    """Multiply gradients in place by each factor, in order."""
    for factor in factors:
        torch._foreach_mul_(gradients, factor)


def refuse_beyond(grads: Mapping[str, Tensor], largest: float) -> None:
    """Raise NonFiniteGradient, which names the tensor, for NaN or a magnitude above `largest`."""
    if _all_within(list(grads.values()), largest):
        return
    for name, gradient in grads.items():
        low, high = (float(bound) for bound in torch.aminmax(gradient))
        if not (low >= -largest and high <= largest):
            raise NonFiniteGradient(
                f"the gradient of {name} is not finite or exceeds {largest:.3g}",
                "Lower the learning rate if this happens again",
            )


def _all_within(tensors: list[Tensor], largest: float) -> bool:
    """Return True if one query shows that all tensors of a GPU are within `largest`.

    False means unknown: the caller then checks the tensors one by one.
    """
    if not tensors or any(tensor.device.type != "cuda" for tensor in tensors):
        return False
    # The maximum is NaN if any number is NaN, and NaN <= largest is False.
    return bool(torch.stack(torch._foreach_norm(tensors, math.inf)).amax() <= largest)
