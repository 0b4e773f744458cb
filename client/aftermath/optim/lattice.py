"""Values on a lattice: plus or minus a power of two that a block's values share, or three times that.

Decided
- A power of two for every block is one byte, and every value is a whole multiple of the smallest power: sums of values
  are sums of integers, exact in any order.
- Exponents reach from LEAST to MOST, so a value is at most 3 * 2^(MOST - LEAST) = 3 * 2^43 times the smallest, and the
  sum of 256 peers stays below 2^53: float64 holds it exactly.
- The exponent is the one with the least squared error over the block's values, the lower of two that are as good. A
  coefficient below 2^LEAST is not sent, and what is beyond the lattice is sent as its largest value; both stay in the
  residual.

Which exponents can be best: with 2^f <= mean < 2^(f+1) of n magnitudes a, scale s has the error sum(min((a - s)^2,
(a - 3s)^2)). For s <= mean / 6 that of 2s is no larger, as it is at most sum((a - 6s)^2) = sum(a^2) - 12 s sum(a) +
36 n s^2, and that of s at least sum(a^2) - 6 s sum(a). For s >= 2 mean the error of 2s is no less than that of s, as
for every a it is larger by at least 3 s^2 - 6 s a. So the best is from f - 2 to f + 2. With one bit it is f or f + 1.

The error of scale s is sum(a^2) + s (n s - 2 sum(a)) - 4 s sum(max(0, a - 2 s)), the last part with 2 bits alone: an a
above 2 s is nearer to 3 s. So a scale costs one pass, and sum(a^2) need not be known.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST, MOST = -40, 3
SMALLEST = 2.0**LEAST
LARGEST = 3 << (MOST - LEAST)
"""In multiples of the smallest."""
_CANDIDATES = range(-2, 3)
_FRACTION_BITS, _EXPONENT_BIAS = 23, 127  # of fp32
_HALF = 1 << _FRACTION_BITS - 1  # of the fraction: set in 1.5 times a power of two
_HALVES = _HALF - 1  # what else there is of it


def quantise(values: Tensor, bits: int) -> Tensor:
    """The nearest values on the lattice of fp32 [blocks, topk]; zeros (unused slots) stay zeros. `bits` is 1 or 2."""
    magnitudes = values.abs()
    used = magnitudes > 0
    mean = magnitudes.sum(1, keepdim=True) / used.sum(1, keepdim=True).clamp_(min=1)
    floor = torch.frexp(mean).exponent - 1  # of log2 of the mean, [blocks, 1]
    magnitudes.mul_(_power(-floor))  # so that squares stay within fp32
    count, total = used.sum(1, keepdim=True), magnitudes.sum(1, keepdim=True)
    best, lowest = torch.zeros_like(floor), torch.full_like(mean, torch.inf)
    for candidate in _CANDIDATES:
        exponent = (floor + candidate).clamp_(LEAST, MOST)
        unit = _power(exponent - floor)
        error = unit * (unit * count - 2 * total)
        if bits == 2:
            error -= 4 * unit * (magnitudes - 2 * unit).clamp_(min=0).sum(1, keepdim=True)
        better = error < lowest
        lowest = torch.where(better, error, lowest)
        best = torch.where(better, exponent, best)
    sent = _power(best).expand_as(values).copysign(values)
    if bits == 2:
        sent = torch.where(magnitudes > 2 * _power(best - floor), 3 * sent, sent)
    return sent.mul_(used)


def _power(exponents: Tensor) -> Tensor:
    """2^exponent in fp32, exact everywhere: made from its bits. Exponents are clipped to those of normal numbers."""
    bits = exponents.clamp(1 - _EXPONENT_BIAS, _EXPONENT_BIAS).to(torch.int32) + _EXPONENT_BIAS
    return (bits << _FRACTION_BITS).view(torch.float32)


def exponents_of(values: NDArray[np.float32], first: NDArray[np.bool_]) -> NDArray[np.int8]:
    """The exponent of every block, of lattice values by slot; 0 for a block without votes.

    `first` marks the first slot of each block; used slots come first. Raises ValueError for values off the lattice.
    """
    bits, used = values.view(np.int32), values != 0
    own = ((bits >> _FRACTION_BITS & 0xFF) - _EXPONENT_BIAS).astype(np.int16)
    own -= is_three(values)
    shared = np.where(used[first], own[first], 0)
    expected = np.repeat(shared, np.diff(np.flatnonzero(first), append=len(first)))
    off = used & ((bits & _HALVES != 0) | (own != expected) | (own < LEAST) | (own > MOST))
    if off.any():
        raise ValueError(f"{values[int(off.argmax())]} is not on the lattice, or not its block's")
    return shared.astype(np.int8)


def is_three(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which lattice values are three times their block's power of two."""
    three: NDArray[np.bool_] = values.view(np.int32) & _HALF != 0
    return three
