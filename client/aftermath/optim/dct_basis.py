"""The orthonormal DCT-II basis of a block edge, as integers that are equal on every machine.

Formula: DCT-II, B[i, x] = s_i cos(pi (2x + 1) i / (2n)), s_0 = sqrt(1/n), s_i = sqrt(2/n). Encoding
uses the same numbers, rounded to fp32.
"""

from __future__ import annotations

from functools import cache
from math import isqrt

import torch
from torch import Tensor

from aftermath.base.errors import AftermathError
from aftermath.optim.blocks import MAX_EDGE

# The scale is 2^p with p = 27 - g, where g is the smallest integer with sqrt(n) <= 2^g. By
# Cauchy-Schwarz a column of an orthonormal n x n matrix has an absolute sum of at most sqrt(n). So
# a column of the integers sums to about 2^27 at most. `integer_basis` checks that bound exactly,
# and `optim.exact_signs` relies on it.
COLUMN_SUM_BITS = 27
# Fraction bits of the working precision. Cosines are computed in Python integers, because the
# cosines of libm differ between platforms.
_BITS = 160


class UnsupportedEdge(AftermathError):
    """A block edge is longer than the transform supports."""


def scale_bits(edge: int) -> int:
    """Return the fraction bits p of an edge's basis: 27 for edge 1, 24 for 64, 22 for 1024."""
    return COLUMN_SUM_BITS - ((edge - 1).bit_length() + 1) // 2


def check_edge(edge: int) -> None:
    """Raise UnsupportedEdge unless blocks may have this edge."""
    if not 1 <= edge <= MAX_EDGE:
        raise UnsupportedEdge(
            f"blocks with an edge of {edge} are not supported; the limit is {MAX_EDGE}",
            "Use a compression_chunk of at most 255",
        )


@cache
def integer_basis(edge: int) -> tuple[tuple[int, ...], ...]:
    """Return rows i of columns x: round(B[i, x] * 2^scale_bits(edge)). Raises UnsupportedEdge."""
    check_edge(edge)
    quarter = _quarter_cosines(edge)
    flat = isqrt((1 << 2 * _BITS) // edge)
    wave = isqrt((2 << 2 * _BITS) // edge)
    shift = 2 * _BITS - scale_bits(edge)
    rows = tuple(
        tuple(
            _rounded((wave if i else flat) * _folded(quarter, (2 * x + 1) * i, edge), shift)
            for x in range(edge)
        )
        for i in range(edge)
    )
    if max(sum(abs(row[x]) for row in rows) for x in range(edge)) > 1 << COLUMN_SUM_BITS:
        raise AssertionError(f"the basis of edge {edge} exceeds its bound")
    return rows


@cache
def basis(edge: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the basis [i, x] of an edge.

    float64 holds the integers exactly. Other dtypes hold the rounded real values.
    """
    integers = torch.tensor(integer_basis(edge), dtype=torch.float64)
    if dtype != torch.float64:
        integers = integers * 2.0 ** -scale_bits(edge)
    return integers.to(device=device, dtype=dtype)


def _quarter_cosines(edge: int) -> list[int]:
    """Return cos(pi m / (2 edge)) * 2^_BITS for m = 0 .. edge, by Taylor series. The last is 0."""
    pi = 4 * (4 * _arctan_inverse(5) - _arctan_inverse(239))  # Machin
    cosines = []
    for m in range(edge):
        angle = pi * m // (2 * edge)
        square = angle * angle >> _BITS
        term = total = 1 << _BITS
        k = 0
        while term:
            k += 2
            term = (term * square >> _BITS) // (k * (k - 1))
            total += -term if k % 4 else term
        cosines.append(total)
    return [*cosines, 0]


def _arctan_inverse(x: int) -> int:
    """Return arctan(1/x) * 2^_BITS."""
    power = (1 << _BITS) // x
    total = power
    k = 1
    while power:
        power //= x * x
        k += 2
        total += -(power // k) if k % 4 == 3 else power // k
    return total


def _folded(quarter: list[int], angle: int, edge: int) -> int:
    """Return cos(pi angle / (2 edge)) * 2^_BITS, folded into the first quadrant.

    Equal cosines become equal integers, so coefficients that cancel by symmetry cancel to exactly
    0.
    """
    angle %= 4 * edge
    angle = min(angle, 4 * edge - angle)
    return quarter[angle] if angle <= edge else -quarter[2 * edge - angle]


def _rounded(value: int, shift: int) -> int:
    """Return value / 2^shift to the nearest integer, halves away from zero: f(-x) = -f(x)."""
    magnitude = (abs(value) + (1 << (shift - 1))) >> shift
    return magnitude if value >= 0 else -magnitude
