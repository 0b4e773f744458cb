"""Bounds of what honest training can leave in a private state.

A replay begins with the state that a member committed to before the share. It shows that the share
is honest, but not that this state is. These bounds limit what an invented state can do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from aftermath.audit.claim import MOMENTS, RESIDUAL, RESULT, VALUES
from aftermath.audit.replay import AuditedShare
from aftermath.model.levels import is_hidden_matrix
from aftermath.optim.gradient_clip import LARGEST_RESIDUAL
from aftermath.rules.distro import Distro
from aftermath.rules.optimizer import InnerOptimizerName, Optimizer
from aftermath.rules.sparseloco import SparseLoCo

_ROUNDING = 1.1
"""Factor by which moments may exceed what gradients of the clipped norm give."""
# The norm that a CPU computes for a large fp32 tensor is too small, so clipping leaves more than
# its limit. Squares of norms clipped to 1 were 1.010 (2^26 numbers), 1.029 (2^27), 1.08 (2^28).
_LARGEST_STEP: dict[InnerOptimizerName, float] = {"adamw": 2.0, "muon": 1.0}
"""Largest change of a weight by an inner step, in learning rates (Muon: in a square matrix)."""
_MARGIN = 4.0  # honest residuals reached 0.7 of the bound without it (Muon, decay 0)
_FIRST = ("exp_avg", "first", "momentum")
_SECOND = ("exp_avg_sq", "second")


def impossible_state(share: AuditedShare) -> str | None:
    """Return why honest training cannot give the state before a share, or None.

    Blocks that were not fetched count as zero.
    """
    settings = share.schema.optimizer
    return _moments_fault(settings, share.before) or _residual_fault(
        share.before,
        largest_residual(settings, share.peak_lr, share.config.parameter_shapes(share.tier)),
    )


def largest_residual(
    settings: Optimizer, peak_lr: float, shapes: Mapping[str, Sequence[int]]
) -> float:
    """Return the largest magnitude of a residual's number, with rates of at most `peak_lr`.

    Without sent values, a residual is at most the largest pseudo-gradient / (1 - decay). `_MARGIN`
    allows for sent values. `shapes` are those of the model's parameters.
    """
    lost_part = 1 - settings.decay
    change = math.inf
    if isinstance(settings, SparseLoCo):
        change = settings.inner_steps * peak_lr * _LARGEST_STEP[settings.inner_optimizer]
        if settings.inner_optimizer == "muon":
            change *= _largest_scale(shapes)
    elif isinstance(settings, Distro) and settings.clip is not None:
        change = peak_lr * max(settings.clip, 1.0)  # errors of balance vectors reach 1
    bound = _MARGIN * change / lost_part if lost_part > 0 else math.inf
    return min(bound, LARGEST_RESIDUAL)


def _largest_scale(shapes: Mapping[str, Sequence[int]]) -> float:
    """Return the largest factor by which Muon scales a step: that of the tallest hidden matrix."""
    hidden = (shape for name, shape in shapes.items() if is_hidden_matrix(name, shape))
    return math.sqrt(max((1.0, *(shape[-2] / shape[-1] for shape in hidden))))


def _residual_fault(before: Mapping[str, Tensor], bound: float) -> str | None:
    for name, tensor in before.items():
        if not name.startswith((RESIDUAL, VALUES)) or not tensor.numel():
            continue
        # A coefficient of a transform is at most the norm of its block.
        largest = (
            bound if name.startswith(RESIDUAL) else bound * math.sqrt(_block_size(name, before))
        )
        size = float(tensor.abs().max())
        if not size <= largest:
            return f"{name.removeprefix(RESULT)} reaches {size:.2g}, and training at most {largest:.2g}"
    return None


def _block_size(name: str, before: Mapping[str, Tensor]) -> int:
    residual = before[RESIDUAL + name.removeprefix(VALUES)]
    return residual[0].numel()


def _moments_fault(settings: Optimizer, before: Mapping[str, Tensor]) -> str | None:
    """Return a fault if moments are larger than clipped gradients give."""
    # A moment is a mean of clipped gradients, or of their squares. One huge number would also hide
    # errors in all others: it decays, so it dominates the change that distances are relative to.
    clip = settings.clip
    if clip is None:
        return None
    for kind in _FIRST:
        norm = math.sqrt(sum(float(t.double().norm()) ** 2 for t in _of_kind(kind, before)))
        if not norm <= _ROUNDING * clip:
            return f"the norm of {kind} is {norm:.4g}, and gradients are clipped to {clip:g}"
    for kind in _SECOND:
        total = sum(float(t.double().sum()) for t in _of_kind(kind, before))
        if not total <= _ROUNDING * clip**2:
            return f"the sum of {kind} is {total:.4g}, and gradients are clipped to {clip:g}"
    return None


def _of_kind(kind: str, before: Mapping[str, Tensor]) -> list[Tensor]:
    start = f"{MOMENTS}{kind}/"
    return [tensor for name, tensor in before.items() if name.startswith(start)]
