"""Quantise values to a lattice: +-1 or +-3 times a power of two per block.

There are 44 powers of two, and every value is an integer multiple of the smallest one. So a sum of
values is a sum of integers, which is exact in any order.
"""

from __future__ import annotations

import torch
from torch import Tensor

# A value is at most 3 * 2^(MOST - LEAST) = 3 * 2^43 times the smallest, and the sum of 256 peers
# stays below 2^53: float64 holds it exactly.
LEAST = -40
MOST = 3
SMALLEST = 2.0**LEAST
LARGEST = 3 << (MOST - LEAST)
"""Largest value, in multiples of the smallest."""
# The exponent minimises the squared error over the block's values; ties go to the lower one. A
# coefficient below 2^LEAST is not sent, and one beyond the lattice is sent as the lattice's largest
# value. Both errors stay in the residual.
#
# Why few candidates suffice: take n magnitudes a with 2^f <= mean < 2^(f+1). Scale s has the error
# E(s) = sum(min((a - s)^2, (a - 3s)^2)).
# - If s <= mean / 6, then E(2s) <= E(s): E(2s) is at most sum((a - 6s)^2) = sum(a^2) - 12 s sum(a)
#   + 36 n s^2, and E(s) is at least sum(a^2) - 6 s sum(a).
# - If s >= 2 mean, then E(2s) >= E(s): each a adds at least 3 s^2 - 6 s a more to E(2s).
# So the best exponent is from f - 2 to f + 2. With one bit it is f or f + 1.
#
# The error of scale s is sum(a^2) + s (n s - 2 sum(a)) - 4 s sum(max(0, a - 2 s)), the last term
# with 2 bits only: an a above 2 s is nearer to 3 s. So a scale costs one pass, and sum(a^2) is not
# needed. Magnitudes are integers there, so every processor and every order of additions makes the
# same choice.
_CANDIDATES = range(-2, 3)
_FRACTION_BITS = 23  # fp32
_EXPONENT_BIAS = 127  # fp32
_HALF = 1 << _FRACTION_BITS - 1  # the fraction bit that is set in 1.5 times a power of two
_ERROR_BITS = 55


def fraction_bits(topk: int) -> int:
    """Return the fraction bits of a block's magnitudes when errors are compared.

    The largest magnitude is from 1 to 2. With f bits, sums of k magnitudes and units of at most 4
    times their mean, no error reaches k 2^(2f + 7).
    """
    return (_ERROR_BITS - topk.bit_length()) // 2


def quantise(values: Tensor, bits: int) -> Tensor:
    """Return the nearest lattice values of fp32 [blocks, topk]. Zeros (unused entries) stay zero.

    `bits` is 1 or 2. MPS has no float64 and uses the CPU.
    """
    if values.device.type == "mps":
        return quantise(values.cpu(), bits).to(values.device)
    magnitudes = values.abs()
    used = magnitudes > 0
    fraction = fraction_bits(values.shape[1])
    # floor of log2, [blocks, 1]
    highest = torch.frexp(magnitudes.amax(1, keepdim=True)).exponent - 1
    scaled = (magnitudes * _power(fraction - highest)).floor_()
    count = used.sum(1, keepdim=True)
    total = _sum(scaled)
    floor = torch.frexp((total // count.clamp(min=1)).double()).exponent - 1  # floor(log2(mean))
    best = torch.full_like(floor, MOST)
    lowest = torch.full_like(total, torch.iinfo(torch.int64).max)
    for candidate in _CANDIDATES:
        exponent = (floor + candidate + highest - fraction).clamp_(LEAST, MOST)
        unit = 1 << (exponent - highest + fraction).clamp_(0, fraction + 2).long()
        error = unit * (unit * count - 2 * total)
        if bits == 2:
            error -= 4 * unit * _sum((scaled - 2 * unit.float()).clamp_(min=0))
        better = error < lowest
        lowest = torch.where(better, error, lowest)
        best = torch.where(better, exponent, best)
    one = _power(best)
    sent = one.expand_as(values).copysign(values)
    if bits == 2:
        sent = torch.where(magnitudes > 2 * one, 3 * sent, sent)
    return sent.mul_(used)


def _sum(whole: Tensor) -> Tensor:
    """Return the sum of each row of fp32 integers, int64 [blocks, 1], added exactly in float64."""
    return whole.sum(1, keepdim=True, dtype=torch.float64).long()


def _power(exponents: Tensor) -> Tensor:
    """Return 2^exponent in fp32, made from its bits. Exponents are clipped to normal numbers."""
    bits = exponents.clamp(1 - _EXPONENT_BIAS, _EXPONENT_BIAS).to(torch.int32) + _EXPONENT_BIAS
    return (bits << _FRACTION_BITS).view(torch.float32)


def digits_of(values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the digits int8 [blocks, topk] of lattice values and the exponents int32 [blocks, 1].

    The exponent of a block without votes has no meaning. Used entries come first. Raises ValueError
    for values off the lattice.
    """
    words = values.view(torch.int32)
    three = words & _HALF != 0
    digits = values.sign().to(torch.int8).mul_(1 + 2 * three.to(torch.int8))
    first = words[:, :1]
    voted = digits[:, :1] != 0
    exponents = (first >> _FRACTION_BITS & 0xFF) - _EXPONENT_BIAS - three[:, :1].to(torch.int32)
    within = (exponents >= LEAST) & (exponents <= MOST) | ~voted
    same = torch.equal(digits * torch.where(voted, _power(exponents), 0.0), values)
    if not (same and bool(within.all())) or (bits == 1 and bool(three.any())):
        raise ValueError("a value is not on the lattice of its block")
    return digits, exponents


def is_half_more(values: Tensor) -> Tensor:
    """Return which lattice values are three times their block's power of two."""
    return values.view(torch.int32) & _HALF != 0
