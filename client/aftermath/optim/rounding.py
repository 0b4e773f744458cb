"""A learning rate, or a factor made of one, as replicas use it."""

from __future__ import annotations

import math

import numpy as np


def to_fp32(number: float) -> float:
    """The number rounded to fp32, once. Raises ValueError unless it is finite and not negative."""
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"learning rate or weight decay factor {number!r} is not a finite number of at least 0")
    return float(np.float32(number))
