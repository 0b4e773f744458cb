"""Gradient clipping by the global norm.

Decided: as upstream, the fp32 L2 norm over all of a member's tensors, scale max/(norm + 1e-6) when above. A norm that
is not finite changes nothing: encoding refuses such gradients and names the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def clip_gradients(grads: Mapping[str, Tensor], max_norm: float) -> float:
    """Scale fp32 gradients in place so that their global L2 norm is at most `max_norm` (> 0); the norm before."""
    tensors = list(grads.values())
    norm = float(torch.nn.utils.get_total_norm(tensors))
    if math.isfinite(norm) and norm > max_norm:
        torch._foreach_mul_(tensors, max_norm / (norm + 1e-6))
    return norm
