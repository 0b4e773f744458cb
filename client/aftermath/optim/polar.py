"""The polar factor of matrices with the same bits on every machine: the Polar Express in integers that fp32 holds.

Per step, of an X [r, c] with r <= c, whose entries are integers, and each of B and P rounded to such (halves to even),
after a fixed offset of at most a half is added (`_offsets`):
    A = X X^T,  B ~ A,  P = a + b B + c B B,  X <- P X
with the polynomials of `optim.orthogonal` for 4 steps from 0.005. They are written out, since what computes them solves
equations in floating point. Each of X, B and P has its own unit (`_UNITS`, `_SQUARES`, `_FACTORS`), so that its rows
and columns are a little shorter than 2^12.

Why every product is exact, in whatever order its sums run
- By Cauchy's inequality no part of a sum is larger than the product of a row's and a column's length. Where all of
  these are below 2^12 every part is an integer below 2^24, and such integers fp32 holds.
- That they are is looked up in every step, for every matrix: squares of the lengths of X's rows are on the diagonal of
  X X^T, those of B's on that of B B, and those of P's rows and X's columns are summed. A sum of squares that leaves
  fp32's integers is not below 2^24 in any order, since rounding keeps an order. So all machines see the same; a matrix
  that is not within the bounds stays as its last good step left it, which is no polar factor. To begin with every
  matrix of up to 2^24 columns is within them.
- All else is single operations of IEEE on one tensor or two, and whole sums in int64.
Hence equal matrices have equal factors for any number of threads, memory layout, BLAS or device with IEEE fp32 and
plain products (no TF32, none that are emulated). MPS promises neither, and leaves it to the CPU.

Why so few bits are enough
- The first B is divided by the length of A (the fourth root of the sum of the singular values' fourth powers bounds the
  largest), which is nearer to the largest singular value than the Frobenius norm is. So 4 steps reach as far as 5.
- Rounding is noise: of X 0.41 / 2000 an entry, where entries are about 1 / sqrt(c). A step with its polynomial keeps
  singular values below 2.02 with a margin for it (`orthogonal.MARGIN`).
- It is noise because of the offsets. Of a matrix of few numbers, as a member may send, all would be rounded one way,
  and what is lost would add up to a direction of its own: past 2.02, where the next polynomial throws it up, to a
  hundred times its length and more. The offsets are spread evenly, and as matrices have no direction of their own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

POLYNOMIALS = (
    (8.0714, -22.5286, 16.1924),
    (3.8707, -2.8145, 0.5270),
    (3.1582, -2.3216, 0.4749),
    (2.2000, -1.5771, 0.4089),
)
"""Of the steps: a, b and c."""
_LIMIT = float(1 << 24)  # the square of a length that no row or column reaches
_LENGTH = 4095  # of the longest row or column, which fp32's own rounding makes no longer than 2^12
_UNITS = 2000  # of X from the second step on: its singular values are below 2.02
_SQUARES = (4000, 1000, 1000, 1000)  # of B, by step: its singular values are below 1 at first, then below 4.1
_FACTORS = (490, 1000, 1000, 1000)  # of P, by step: its singular values are below 8.2 at first, then below 4
_NORM_BITS = 11  # of numbers whose squares are summed for a norm


def exact_polar(matrices: Tensor) -> Tensor:
    """Nearly U V^T of every fp32 matrix [..., rows, columns] = U S V^T, in fp32.

    Singular values above 0.005 of the fourth root of the sum of their fourth powers come near 1, within 0.13. A matrix
    of zeros stays one. Entries must be finite.

    Of a matrix of low rank, the directions without a singular value do not stay empty: the rounding of the integers has
    a part in each, and is raised with what is small. That is noise, the same on all machines and no direction of its
    own: up to 0.13 in each such direction of matrices 64 x 64, and 0.32 of 256 x 1024. Where these are many it is more
    than the rest: of rank 1 half as long and three times as long as the matrix's own part, of half the full rank a
    twentieth and a fifth.
    """
    if matrices.device.type == "mps":
        matrices = matrices.cpu()
    tall = matrices.shape[-2] > matrices.shape[-1]
    oriented = matrices.mT if tall else matrices
    found = _polar(oriented.reshape(-1, *oriented.shape[-2:])).view(oriented.shape)
    return found.mT if tall else found


def _polar(matrices: Tensor) -> Tensor:
    """Of matrices [n, short, long]."""
    x, last = _scaled(matrices), len(POLYNOMIALS) - 1
    back: Tensor | float
    within = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for step, ((a, b, c), squares, factors) in enumerate(zip(POLYNOMIALS, _SQUARES, _FACTORS, strict=True)):
        square = x @ x.mT  # [n, short, short]
        within &= _longest(square.diagonal(dim1=1, dim2=2)) < _LIMIT
        if step == 0:
            lengths = _lengths(square)
            square.mul_(_each((squares / length for length in lengths), x))
            back = _each((_UNITS / (factors * math.sqrt(length)) for length in lengths), x)
        else:
            square.mul_(_fp32(squares / _UNITS**2))
            back = _fp32(1 / factors if step < last else 1 / (factors * _UNITS))
        fourth = square.add_(_offsets(square, f"B{step}", same=True)).round_() @ square.mT
        within &= _longest(fourth.diagonal(dim1=1, dim2=2)) < _LIMIT
        factor = fourth.mul_(_fp32(c * factors / squares**2)).add_(square.mul_(_fp32(b * factors / squares)))
        factor.add_(_offsets(factor, f"P{step}", same=True)).round_()
        factor.diagonal(dim1=1, dim2=2).add_(round(a * factors))
        within &= (_longest(factor.square().sum(2)) < _LIMIT) & (_longest(x.square().sum(1)) < _LIMIT)
        new = (factor @ x).mul_(back)
        if step < last:
            new.add_(_offsets(new, f"X{step}", same=False)).round_()
        x = (
            new
            if bool(within.all())
            else torch.where(within[:, None, None], new, x if step < last else x * _fp32(1 / _UNITS))
        )
    return x.add_(0.0)  # a sum of nothing but -0 may begin with 0 or with the first of them


def _scaled(matrices: Tensor) -> Tensor:
    """Integers whose rows and columns are as long as the bounds let them, or a little shorter: [n, short, long]."""
    exponents = [_NORM_BITS - math.frexp(largest)[1] for largest in matrices.abs().amax((1, 2)).tolist()]
    x = matrices  # times a power of two that fp32 may lack: in two parts
    for powers in ([exponent // 2 for exponent in exponents], [exponent - exponent // 2 for exponent in exponents]):
        x = x * _each((2.0**power for power in powers), x)
    squares = _squares(x.round())
    longest = torch.maximum(_longest(squares.sum(2, dtype=torch.int64)), _longest(squares.sum(1, dtype=torch.int64)))
    length = _first_length(x.shape[2])
    return x.mul_(_each((length / (math.isqrt(square) + 1) for square in longest.tolist()), x)).round_()


def _offsets(like: Tensor, name: str, *, same: bool) -> Tensor:
    """From -1/2 to 1/2, [rows, columns], equal for `like` of equal shape; `same`: symmetric.

    Bits from the middle of products of two random numbers, one of the row and one of the column: as evenly spread as
    such, at the cost of a multiplication.
    """
    rows = _drawn(f"{name} row", like.shape[1]).to(like.device)
    columns = rows if same else _drawn(f"{name} column", like.shape[2]).to(like.device)
    bits = torch.outer(rows, columns).bitwise_right_shift_(16).bitwise_and_(0xFFFF)
    return bits.to(torch.float32).mul_(2.0**-16).sub_(0.5)


@lru_cache(maxsize=256)
def _drawn(name: str, count: int) -> Tensor:
    """Whole numbers of 24 bits, int64 [count], from a name."""
    drawn = hashlib.shake_128(f"aftermath polar {name}".encode()).digest(3 * count)
    return torch.tensor([int.from_bytes(drawn[at : at + 3], "little") for at in range(0, 3 * count, 3)])


def _first_length(columns: int) -> float:
    """Of the longest row or column before it is rounded, which may move all of its numbers outwards by a half."""
    return max(_LENGTH - math.sqrt(columns) / 2, _LENGTH / 2)


def _lengths(squares: Tensor) -> list[float]:
    """At least the Frobenius norm of every matrix [n, r, r] of integers up to 2^24."""
    unit = 2.0 ** (_NORM_BITS - 24)
    sums = _squares((squares * unit).round_()).sum((1, 2), dtype=torch.int64)
    return [(math.isqrt(total) + 1) / unit for total in sums.tolist()]


def _squares(integers: Tensor) -> Tensor:
    """Of integers up to 2^11: of what they may have been at most before they were rounded."""
    return integers.abs_().add_(1).square_()


def _longest(squares: Tensor) -> Tensor:
    """The largest of every matrix, [n], of [n, rows]."""
    return squares.amax(1)


def _each(numbers: Iterable[float], like: Tensor) -> Tensor:
    """One fp32 number for every matrix, [n, 1, 1]."""
    return torch.tensor(list(numbers), dtype=torch.float32, device=like.device)[:, None, None]


def _fp32(number: float) -> float:
    """The nearest number of fp32: what a device would else make of it."""
    return float(torch.tensor(number, dtype=torch.float32))
