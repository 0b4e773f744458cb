"""Round a learning rate to fp32, equally on all replicas."""

from __future__ import annotations

import math

import numpy as np


def to_fp32(number: float) -> float:
    """Return the number rounded to fp32, once. Raises ValueError unless it is finite and >= 0."""
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(
            f"learning rate or weight decay factor {number!r} is not a finite number of at least 0"
        )
    return float(np.float32(number))
