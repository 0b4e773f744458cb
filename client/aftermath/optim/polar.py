"""The polar factor of a matrix with the same bits on every machine: the Polar Express in integers that float64 holds.

Per step, of an X [r, c] with r <= c whose entries are multiples of 2^-23, and each product rounded to such multiples
(halves to even):
    A = X X^T,  P = a + b A + c A A,  X <- P X
with the polynomials of `optim.orthogonal` for 5 steps from 1e-3, in multiples of 2^-12. They are written out, since
what computes them solves equations in floating point.

Why every step is exact in float64, whose integers are exact up to 2^53, in whatever order the sums run
- X is divided by a bound of its Frobenius norm before, so its singular values are at most 1, and each step's polynomial
  keeps them below 2.02: the interval of the Polar Express with its margin of a hundredth, of which rounding takes a
  part; to first order they stay below 2.01 up to 2^28 entries. So no row or column is longer than 2.02.
- By Cauchy's inequality any part of a sum in a product is, in magnitude, at most the product of a row's and a column's
  length. In units of 2^-46 that is 2.02^2 for X X^T, 2.02^4 < 17 for A A, and for P X at most 8.21 * 1 in the first
  step (P's largest singular value, times X's) and 4.07 * 2.02 in the others: all below 2^46 * 17 < 2^51.
- b A and c (A A) are integers below 2^44 in units of 2^-35, and so is their sum.
- The bound of the norm is an integer's: entries are brought to at most 2^17 by a power of two and rounded to q, and
  sum((|q| + 1)^2) is summed in int64, exact for 2^28 entries, which is more than any segment has.
Hence equal matrices have equal factors for any number of threads, memory layout, BLAS or device with IEEE float64 and
plain products (not emulated ones). Devices without float64 leave it to the CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from aftermath.optim.orthogonal import MARGIN
from aftermath.optim.ranges import LARGEST_MATRIX

FRACTION_BITS = 23
COEFFICIENT_BITS = 12
POLYNOMIALS = (
    (33608, -93806, 67423),
    (16656, -11719, 2123),
    (16014, -11564, 2151),
    (13458, -9893, 1988),
    (9423, -6836, 1715),
)
"""Of the steps: a, b and c in multiples of 2^-12."""
_NORM_BITS = 17
_UNIT = 2.0**-FRACTION_BITS


def exact_polar(matrix: Tensor) -> Tensor:
    """Nearly U V^T of an fp32 matrix [rows, columns] = U S V^T, as float64 multiples of 2^-23 on a device that has it.

    Singular values above 1e-3 of the Frobenius norm come near 1, within 0.17. A matrix of zeros stays one. Entries must
    be finite. Raises ValueError for more than 2^28 of them.
    """
    if matrix.numel() > LARGEST_MATRIX:
        raise ValueError(f"a matrix of {matrix.numel()} entries is too large for an exact polar factor")
    if matrix.device.type == "mps":
        matrix = matrix.cpu()
    tall = matrix.shape[0] > matrix.shape[1]
    x = _scaled((matrix.mT if tall else matrix).double())  # [short, long]
    for a, b, c in POLYNOMIALS:
        square = _product(x, x.mT)  # [short, short]
        polynomial = square.mul(b).add_(_product(square, square).mul_(c)).mul_(2.0**-COEFFICIENT_BITS).round_()
        polynomial.diagonal().add_(a << FRACTION_BITS - COEFFICIENT_BITS)
        x = _product(polynomial, x)
    x = x.mul_(_UNIT).add_(0.0)  # a sum of nothing but -0 may begin with 0 or with the first of them
    return x.mT if tall else x


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Of matrices in units of 2^-23, in such units."""
    return torch.matmul(left, right).mul_(_UNIT).round_()


def _scaled(x: Tensor) -> Tensor:
    """x over a little more than its Frobenius norm, in units of 2^-23."""
    largest = float(x.abs().max()) if x.numel() else 0.0
    if not largest:
        return x
    _, exponent = math.frexp(largest)
    x = x * 2.0 ** (_NORM_BITS - exponent)
    rounded = x.round().long().abs_().add_(1)
    norm = math.isqrt(int(rounded.mul_(rounded).sum())) + 1
    return x.mul_(2.0**FRACTION_BITS / (norm * MARGIN)).round_()
