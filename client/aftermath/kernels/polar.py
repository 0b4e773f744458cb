"""Compute exact polar factors of matrices, one matrix per call, with int16 products.

Results equal those of `optim.integer_polar` bit by bit: sums of products are exact there too, and
the compiler fuses none of the fp32 operations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels.jit import kernel
from aftermath.kernels.products import COLUMNS, DOT, ROWS, dot_tile, pair_tile

_EDGE = 64  # rows and columns are padded to a multiple of this with zeros
_LIMIT = 1 << 24
_LARGEST = np.float32(4096)  # the square of a larger number is not below the limit either
_NORM_BITS = 11

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Small = NDArray[np.int16]
Sums = NDArray[np.int32]
Numbers = NDArray[np.int64]


@kernel(
    "void(f4[:,:,::1], f4[:,:,::1], b1[::1], i8, i8, f8, f8[:,::1], u4[:,::1], u4[:,::1], u4[:,::1], u4[:,::1],"
    " f8)"
)
def polar(
    matrices: Floats,
    found: Floats,
    within: NDArray[np.bool_],
    first: int,
    last: int,
    first_length: float,
    steps: NDArray[np.float64],
    squares_drawn: Words,
    factors_drawn: Words,
    rows_drawn: Words,
    columns_drawn: Words,
    unit: float,
) -> None:
    """Write to `found` the polar factors of matrices [first, last) of [n, r, c], with r <= c.

    Set `within` for matrices within the bounds. The factors of others are not valid. Each row of
    `steps` has the unit of B, the unit of P, and the polynomial's c, b and a in these units. The
    drawn numbers of step s make the offsets of B and P, [s, r], and of X, [s, r] and [s, c]. `unit`
    is that of X.
    """
    _, r, c = matrices.shape
    tall = -(-r // _EDGE) * _EDGE
    wide = -(-c // _EDGE) * _EDGE
    # The padding stays zero, so one set of buffers serves all matrices.
    x = np.zeros((tall, wide), np.int16)
    pairs = np.zeros((wide // COLUMNS, tall // 2, COLUMNS), np.int32)
    other = np.zeros_like(pairs)
    small = np.zeros((tall, tall), np.int16)  # B, then P
    small_pairs = np.zeros((tall // COLUMNS, tall // 2, COLUMNS), np.int32)
    square = np.zeros((tall, tall), np.int32)
    panel = np.zeros((tall, _EDGE), np.int32)
    columns = np.zeros(wide, np.int64)
    end = len(steps) - 1
    for number in range(first, last):
        matrix = found[number]
        within[number] = False
        columns[:] = 0
        _scale(matrices[number], matrix, first_length)
        if not _narrow(matrix, x, columns):
            continue
        _pair(x, pairs, 0, wide, r)
        for step in range(len(steps)):
            squares, factors, third, second, diagonal = steps[step]
            _gram(x, square, r)
            if step == 0:
                length = _length(square, r)
                down = np.float32(squares / length)
                back = np.float32(unit / (factors * math.sqrt(length)))
            else:
                down = np.float32(squares / unit**2)
                back = np.float32(1 / factors if step < end else 1 / (factors * unit))
            good = _square(square, down, squares_drawn[step], small, r)
            _pair(small, small_pairs, 0, tall, r)
            _multiply(small, small_pairs, 0, tall, square, r, True)
            _mirror(square, r)
            by_fourth = np.float32(third)
            by_square = np.float32(second)
            drawn = factors_drawn[step]
            good &= _factor(square, small, by_fourth, by_square, diagonal, drawn, r)
            columns[:] = 0
            for j in range(0, wide if good else 0, _EDGE):
                _multiply(small, pairs, j, _EDGE, panel, r, False)
                count = min(_EDGE, c - j)
                if step == end:
                    for i in range(r):
                        for k in range(count):
                            matrix[i, j + k] = np.float32(panel[i, k]) * back + np.float32(0)
                    continue
                drawn = columns_drawn[step]
                good &= _step(panel, back, rows_drawn[step], drawn, x, j, count, columns, r)
                _pair(x, other, j, _EDGE, r)
            if not (good and (step == end or _rows_within(x, r))):
                break
            within[number] = step == end
            pairs, other = other, pairs


@kernel()
def _multiply(
    one: Small, pairs: Sums, first: int, count: int, out: Sums, rows: int, lower: bool
) -> None:
    """Set out [rows, count] to one @ other[:, first : first + count], given as pairs of rows.

    `lower`: only the part below the diagonal, which is in the first columns.
    """
    width = one.shape[1] * 2
    stride = COLUMNS * 4
    line = out.shape[1] * 4
    for j in range(0, count, COLUMNS):
        at = pairs.ctypes.data + (first + j) * pairs.shape[1] * 4
        for i in range(j // ROWS * ROWS if lower else 0, rows, ROWS):
            place = out.ctypes.data + i * line + 4 * j
            own = one.ctypes.data + i * width
            pair_tile(own, width, at, stride, (rows + 1) // 2, place, line)


@kernel()
def _gram(x: Small, out: Sums, rows: int) -> None:
    """Set out [rows, rows] to x x^T."""
    width = x.shape[1] * 2
    line = out.shape[1] * 4
    vectors = x.shape[1] // COLUMNS
    for top in range(0, rows, 2 * DOT):  # other rows serve two tiles while they are in the cache
        for j in range(0, min(top + 2 * DOT, rows), DOT):
            other = x.ctypes.data + j * width
            for i in range(top, min(top + 2 * DOT, rows), DOT):
                one = x.ctypes.data + i * width
                dot_tile(one, other, width, vectors, out.ctypes.data + i * line + 4 * j, line)
    _mirror(out, rows)


@kernel()
def _mirror(out: Sums, rows: int) -> None:
    """Copy the part below the diagonal to the part above it, block by block."""
    for top in range(0, rows, ROWS):
        for left in range(0, top + 1, ROWS):
            for i in range(top, min(top + ROWS, rows)):
                for j in range(left, min(left + ROWS, i)):
                    out[j, i] = out[i, j]


@kernel()
def _pair(x: Small, pairs: Sums, first: int, count: int, rows: int) -> None:
    """Pack each pair of rows into words, for whole panels of columns: [panel, pair, column].

    The first row is in the lower half of a word. A panel is contiguous, to stay in the cache.
    """
    for i in range(0, rows, 2):
        for j in range(first, first + count, COLUMNS):
            low = x[i, j : j + COLUMNS]
            high = x[i + 1, j : j + COLUMNS]
            line = pairs[j // COLUMNS, i // 2]
            for k in range(COLUMNS):
                line[k] = np.int32(np.int32(high[k]) << 16 | np.int32(low[k]) & 0xFFFF)


@kernel()
def _scale(given: Floats, matrix: Floats, first_length: float) -> None:
    """Set `matrix` to `given`, scaled and rounded to integers.

    Before rounding, rows and columns are at most `first_length` long.
    """
    r, c = matrix.shape
    largest = np.float32(0)
    for i in range(r):
        line = given[i]
        for j in range(c):
            largest = max(largest, abs(line[j]))
    exponent = _NORM_BITS - math.frexp(largest)[1]
    one = np.float32(math.ldexp(1.0, exponent // 2))
    two = np.float32(math.ldexp(1.0, exponent - exponent // 2))
    longest: Any = 0
    columns = np.zeros(c, np.int64)
    for i in range(r):
        own = given[i]
        line = matrix[i]
        total: Any = 0
        for j in range(c):
            line[j] = own[j] * one * two
            above = np.int64(np.int32(np.rint(abs(line[j])))) + 1
            total += above * above
            columns[j] += above * above
        longest = max(longest, total)
    for j in range(c):
        longest = max(longest, columns[j])
    by = np.float32(first_length / (_root(longest) + 1))
    for i in range(r):
        line = matrix[i]
        for j in range(c):
            line[j] = np.rint(line[j] * by)


@kernel()
def _root(number: int) -> Any:
    """Return the integer square root."""
    root: Any = np.int64(math.sqrt(float(number)))
    while root * root > number:
        root -= 1
    while (root + 1) * (root + 1) <= number:
        root += 1
    return root


@kernel()
def _narrow(matrix: Floats, x: Small, columns: Numbers) -> bool:
    """Copy integers to int16. Return whether rows and columns are within bounds."""
    r, c = matrix.shape
    within = True
    for i in range(r):
        total: Any = 0
        for j in range(c):
            whole = np.int32(matrix[i, j])
            x[i, j] = whole
            square = np.int64(whole) * np.int64(whole)
            total += square
            columns[j] += square
        within &= total < _LIMIT
    for j in range(c):
        within &= columns[j] < _LIMIT
    return within


@kernel()
def _length(square: Sums, r: int) -> Any:
    """Return an upper bound of the Frobenius norm, as `integer_polar` computes it."""
    scale = np.float32(2.0 ** (_NORM_BITS - 24))
    total: Any = 0
    for i in range(r):
        line = square[i]
        for j in range(r):
            above = np.int64(np.int32(np.rint(abs(np.float32(line[j]) * scale)))) + 1
            total += above * above
    return (_root(total) + 1) / 2.0 ** (_NORM_BITS - 24)


@kernel()
def _offset(one: Any, other: Any) -> Any:
    """Return the offset of two drawn numbers, from -1/2 to 1/2."""
    bits = np.int32(np.uint32(one * other) >> np.uint32(16))
    return np.float32(bits) * np.float32(2.0**-16) - np.float32(0.5)


@kernel()
def _whole(number: Any) -> Any:
    """Return a whole fp32 as int32, clipped to numbers whose squares are within bounds."""
    return np.int32(min(max(number, -_LARGEST), _LARGEST))


@kernel()
def _square(square: Sums, down: Any, drawn: Words, small: Small, r: int) -> bool:
    """Set B to the scaled square, rounded. Return whether its rows are within bounds."""
    within = True
    for i in range(r):
        line = square[i]
        own = small[i]
        row = drawn[i]
        total: Any = 0
        for j in range(r):
            whole = _whole(np.rint(np.float32(line[j]) * down + _offset(row, drawn[j])))
            own[j] = whole
            total += np.int64(np.int32(whole * whole))
        within &= total < _LIMIT
    return within


@kernel()
def _factor(
    fourth: Sums, small: Small, third: Any, second: Any, first: float, drawn: Words, r: int
) -> bool:
    """Replace B by P. Return whether its rows are within bounds."""
    within = True
    for i in range(r):
        line = fourth[i]
        own = small[i]
        row = drawn[i]
        total: Any = 0
        for j in range(r):
            number = np.float32(line[j]) * third + np.float32(own[j]) * second
            number = np.rint(number + _offset(row, drawn[j]))
            if i == j:
                number = number + np.float32(first)
            whole = _whole(number)
            own[j] = whole
            total += np.int64(np.int32(whole * whole))
        within &= total < _LIMIT
    return within


@kernel()
def _step(
    panel: Sums,
    back: Any,
    rows: Words,
    drawn: Words,
    x: Small,
    first: int,
    count: int,
    columns: Numbers,
    r: int,
) -> bool:
    """Set `count` columns of X from `first` on to the scaled product, rounded.

    Return whether they are within bounds.
    """
    squares = columns[first : first + count]
    other = drawn[first : first + count]
    for i in range(r):
        line = panel[i]
        own = x[i, first : first + count]
        row = rows[i]
        for j in range(count):
            own[j] = _whole(np.rint(np.float32(line[j]) * back + _offset(row, other[j])))
        for j in range(count):
            squares[j] += np.int64(np.int32(np.int32(own[j]) * np.int32(own[j])))
    within = True
    for j in range(count):
        within &= squares[j] < _LIMIT
    return within


@kernel()
def _rows_within(x: Small, r: int) -> bool:
    """Return whether all rows of X are within bounds."""
    within = True
    for i in range(r):
        line = x[i]
        total: Any = 0
        for j in range(len(line)):
            total += np.int64(np.int32(np.int32(line[j]) * np.int32(line[j])))
        within &= total < _LIMIT
    return within
