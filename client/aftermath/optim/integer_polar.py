"""Compute polar factors with equal bits on every machine: the Polar Express on integers in fp32.

It needs IEEE fp32 and exact products (no TF32, no emulation). MPS guarantees neither, so it uses
the CPU.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache

import torch
from torch import Tensor

from aftermath.optim import compiled_polar, compiled_sparse, half_products

# Per step, for an X [r, c] with r <= c and integer entries; B and P are rounded to integers (halves
# to even) after a fixed offset of at most a half (`_offsets`):
#     A = X X^T,  B ~ A,  P = a + b B + c B B,  X <- P X
# The polynomials are those of `optim.float_polar` for 4 steps from 0.005. They are constants, since
# computing them solves equations in floating point. X, B and P have their own units (`_UNITS`,
# `_SQUARES`, `_FACTORS`), so that rows and columns are a little shorter than 2^12.
#
# Why every product is exact, in any order of summation:
# - By Cauchy's inequality no part of a sum exceeds the product of a row's and a column's length. If
#   these are below 2^12, every part is an integer below 2^24, which fp32 holds.
# - Every step checks this for every matrix. Squared lengths of X's rows are on the diagonal of X
#   X^T, those of B's on that of B B, and those of P's rows and X's columns are summed. A sum of
#   squares that leaves fp32's integers is not below 2^24 in any order, since rounding is monotonic.
#   So all machines agree. A matrix outside the bounds keeps the result of its last good step, which
#   is not a polar factor. At first every matrix of up to 2^24 columns is within them.
# - Everything else is single IEEE operations on one or two tensors, and whole sums in int64.
#
# Why few bits suffice:
# - The first B is divided by the length of A: the fourth root of the sum of the singular values'
#   fourth powers bounds the largest, more tightly than the Frobenius norm. So 4 steps reach as far
#   as 5.
# - Rounding X adds noise of 0.41 / 2000 per entry, and entries are about 1 / sqrt(c). The
#   polynomials keep singular values below 2.02, with a margin for this (`float_polar.MARGIN`).
# - The offsets make rounding errors random. Without them, all entries of a matrix with few distinct
#   numbers would be rounded the same way. The errors would add up in one direction beyond 2.02,
#   where the next polynomial amplifies them more than a hundredfold. The offsets are evenly spread
#   and have no main direction.
POLYNOMIALS = (
    (8.0714, -22.5286, 16.1924),
    (3.8707, -2.8145, 0.5270),
    (3.1582, -2.3216, 0.4749),
    (2.2000, -1.5771, 0.4089),
)
"""The a, b and c of each step."""
_LIMIT = float(1 << 24)  # upper bound of squared row and column lengths
_LENGTH = 4095  # length of the longest row or column, at most 2^12 after fp32's rounding
_UNITS = 2000  # unit of X from the second step on: singular values below 2.02
# unit of B by step: singular values below 1 at first, then below 4.1
_SQUARES = (4000, 1000, 1000, 1000)
# unit of P by step: singular values below 8.2 at first, then below 4
_FACTORS = (490, 1000, 1000, 1000)
_AT_ONCE = 1 << 20  # numbers per batch in torch, to fit a core's cache
_NORM_BITS = 11  # bits of numbers whose squares are summed for a norm


def exact_polar(matrices: Tensor) -> Tensor:
    """Return nearly U V^T of every fp32 matrix [..., rows, columns] = U S V^T, in fp32.

    Singular values above 0.005 times the fourth root of the sum of their fourth powers come within
    0.13 of 1. A zero matrix stays zero. Entries must be finite.

    In a matrix of low rank, amplified rounding noise fills the empty directions. The noise is equal
    on all machines and has no preferred direction. Its length, relative to the matrix's own part:

    - rank 1: 0.5 for 64 x 64, 3 for 256 x 1024
    - half the full rank: 0.05 for 64 x 64, 0.2 for 256 x 1024

    Per direction it is at most 0.13 for 64 x 64 and 0.32 for 256 x 1024.
    """
    if matrices.device.type == "mps":
        matrices = matrices.cpu()
    tall = matrices.shape[-2] > matrices.shape[-1]
    oriented = matrices.mT if tall else matrices
    batch = oriented.reshape(-1, *oriented.shape[-2:])
    on_cpu = matrices.device.type == "cpu"
    polar = polar_compiled if on_cpu and compiled_sparse.works() else polar_by_torch
    factor = polar(batch).view(oriented.shape)
    return factor.mT if tall else factor


def polar_compiled(matrices: Tensor) -> Tensor:
    """Return the polar factors of matrices [n, short, long] from compiled kernels."""
    _, rows, columns = matrices.shape
    factors, within = compiled_polar.polar(
        matrices,
        first_length=_first_length(columns),
        steps=[
            (squares, factors, c * factors / squares**2, b * factors / squares, round(a * factors))
            for (a, b, c), squares, factors in zip(POLYNOMIALS, _SQUARES, _FACTORS, strict=True)
        ],
        drawn=_drawn_numbers(rows, columns),
        unit=_UNITS,
    )
    for number, good in enumerate(within):
        if not good:
            factors[number] = _polar(matrices[number : number + 1])[0]
    return factors


def polar_by_torch(matrices: Tensor) -> Tensor:
    """Return the polar factors of matrices [n, short, long] from torch."""
    if matrices.device.type != "cpu" or not matrices.numel():
        return _polar(matrices)
    return torch.cat(
        [_polar(some) for some in matrices.split(max(1, _AT_ONCE // matrices[0].numel()))]
    )


def _polar(matrices: Tensor) -> Tensor:
    """Return the polar factors of matrices [n, short, long]."""
    x = _scaled(matrices)
    last = len(POLYNOMIALS) - 1
    back: Tensor | float
    within = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for step, ((a, b, c), squares, factors) in enumerate(
        zip(POLYNOMIALS, _SQUARES, _FACTORS, strict=True)
    ):
        square = half_products.square(x)  # [n, short, short]
        within &= _longest(square.diagonal(dim1=1, dim2=2)) < _LIMIT
        if step == 0:
            lengths = _lengths(square)
            square.mul_(_over(squares, lengths))
            back = _over(_UNITS, lengths.sqrt() * factors)
        else:
            square.mul_(_fp32(squares / _UNITS**2))
            back = _fp32(1 / factors if step < last else 1 / (factors * _UNITS))
        square.add_(_offsets(square, f"B{step}", same=True)).round_()
        fourth = half_products.square(square)  # B is symmetric
        within &= _longest(fourth.diagonal(dim1=1, dim2=2)) < _LIMIT
        factor = fourth.mul_(_fp32(c * factors / squares**2)).add_(
            square.mul_(_fp32(b * factors / squares))
        )
        factor.add_(_offsets(factor, f"P{step}", same=True)).round_()
        factor.diagonal(dim1=1, dim2=2).add_(round(a * factors))
        within &= (_longest(factor.square().sum(2)) < _LIMIT) & (
            _longest(x.square().sum(1)) < _LIMIT
        )
        new = half_products.product(factor, x).mul_(back)
        if step < last:
            new.add_(_offsets(new, f"X{step}", same=False)).round_()
        if x.device.type == "cpu" and bool(within.all()):  # a GPU would wait here
            x = new
        else:
            kept = x if step < last else x * _fp32(1 / _UNITS)
            x = torch.where(within[:, None, None], new, kept)
    return x.add_(0.0)  # makes every zero +0: a sum of -0 may start from 0 or from its first part


def _scaled(matrices: Tensor) -> Tensor:
    """Return integers [n, short, long] with rows and columns almost as long as the bounds allow."""
    exponents = _NORM_BITS - torch.frexp(matrices.abs().amax((1, 2))).exponent
    half = exponents >> 1
    x = matrices  # multiplied in two parts: fp32 may lack the power of two
    for powers in (half, exponents - half):
        x = x * _power(powers)
    squares = _squares(x.round())
    longest = torch.maximum(
        _longest(squares.sum(2, dtype=torch.int64)), _longest(squares.sum(1, dtype=torch.int64))
    )
    length = _first_length(x.shape[2])
    return x.mul_(_over(length, _root_above(longest))).round_()


def _offsets(like: Tensor, name: str, *, same: bool) -> Tensor:
    """Return offsets from -1/2 to 1/2, [rows, columns], equal for every `like` of equal shape.

    `same`: symmetric. An offset has the middle bits of the product of a random number per row and
    one per column. Such offsets are as even as random numbers and cost one multiplication each.
    """
    rows = _drawn(f"{name} row", like.shape[1]).to(like.device)
    columns = rows if same else _drawn(f"{name} column", like.shape[2]).to(like.device)
    bits = torch.outer(rows, columns).bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    return bits.to(torch.float32).mul_(2.0**-16).sub_(0.5)


@lru_cache(maxsize=256)
def _drawn(name: str, count: int) -> Tensor:
    """Return integers of 24 bits, int64 [count], derived from a name."""
    drawn = hashlib.shake_128(f"aftermath polar {name}".encode()).digest(3 * count)
    return torch.tensor(
        [int.from_bytes(drawn[at : at + 3], "little") for at in range(0, 3 * count, 3)]
    )


def _first_length(columns: int) -> float:
    """Return the largest row or column length before rounding, which adds up to 1/2 per entry."""
    return max(_LENGTH - math.sqrt(columns) / 2, _LENGTH / 2)


def _lengths(squares: Tensor) -> Tensor:
    """Return an upper bound of the Frobenius norm of each matrix [n, r, r] of integers <= 2^24.

    Bounds are float64 [n].
    """
    unit = 2.0 ** (_NORM_BITS - 24)
    sums = _squares((squares * unit).round_()).sum((1, 2), dtype=torch.int64)
    return _root_above(sums) * (1 / unit)


def _squares(integers: Tensor) -> Tensor:
    """Return (|x| + 1)^2, in place: above the square of any number that rounds to integer x."""
    return integers.abs_().add_(1).square_()


def _longest(squares: Tensor) -> Tensor:
    """Return the largest squared length of each matrix: [n] from [n, rows]."""
    return squares.amax(1)


def _root_above(integers: Tensor) -> Tensor:
    """Return floor(sqrt(m)) + 1 of integers from 0 to 2^62, as float64."""
    root = integers.double().sqrt().long()
    # The conversion and the square root round.
    root -= (root.square() > integers).long()
    root += ((root + 1).square() <= integers).long()
    return (root + 1).double()


def _over(number: float, divisors: Tensor) -> Tensor:
    """Return number / divisor, divided in float64 and rounded to fp32 once, [n, 1, 1].

    A division of a number by a tensor would multiply by reciprocals.
    """
    return (torch.full_like(divisors, number) / divisors).float()[:, None, None]


def _power(exponents: Tensor) -> Tensor:
    """Return 2^exponent in fp32, made from its bits, [n, 1, 1]."""
    return (exponents.int() + 127 << 23).view(torch.float32)[:, None, None]


def _fp32(number: float) -> float:
    """Return the nearest fp32, so that devices do not round differently."""
    return float(torch.tensor(number, dtype=torch.float32))


@lru_cache(maxsize=64)
def _drawn_numbers(rows: int, columns: int) -> compiled_polar.Drawn:
    """Return the numbers that make the offsets of B, of P, and of X's rows and columns, by step."""
    steps = range(len(POLYNOMIALS))
    b, p, x, across = (
        torch.stack([_drawn(f"{kind}{step} {axis}", count) for step in steps])
        for kind, axis, count in (
            ("B", "row", rows),
            ("P", "row", rows),
            ("X", "row", rows),
            ("X", "column", columns),
        )
    )
    return compiled_polar.Drawn(b, p, x, across)
