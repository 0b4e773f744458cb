"""Count all members' votes block by block and apply them to the parameters in one pass.

Results equal those of `optim.exact_signs` and `optim.sparseloco_apply` bit by bit: partial sums are
exact integers, and the compiler fuses none of the IEEE operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels import dct
from aftermath.kernels.jit import array_at, kernel

_VECTORS = 256  # vectors of one DCT call
_TO_WHOLE = 1.5 * 2.0**52  # adding and subtracting it rounds to integers, halves to even

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]


@kernel("i8(i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1])")
def spans(
    positions: Numbers,
    bases: Numbers,
    sizes: Numbers,
    blocks: Numbers,
    starts: Numbers,
    stops: Numbers,
) -> int:
    """Find the range of each block's votes in one member's result.

    Write starts and stops [all blocks], which are 0 before. bases, sizes and blocks give each
    group's first position, block size and first block; `blocks` ends with the total. Return 1 on
    success, 0 if a block's votes are not contiguous, -1 if a position does not exist.
    """
    low = high = block = group = 0
    for v in range(len(positions)):
        position = positions[v]
        if position < low or position >= high:
            if position < 0:
                return -1
            group = len(bases) - 1
            while bases[group] > position:
                group -= 1
            place = (position - bases[group]) // sizes[group]
            block = blocks[group] + place
            if block >= blocks[group + 1]:
                return -1
            if stops[block] > 0:
                return 0
            low = bases[group] + place * sizes[group]
            high = low + sizes[group]
            starts[block] = v
        stops[block] = v + 1
    return 1


@kernel()
def _count(
    addresses: Numbers,
    whole: bool,
    starts: Numbers,
    stops: Numbers,
    block: int,
    low: int,
    most: int,
    sums: Numbers,
    counts: Numbers,
    touched: Numbers,
) -> int:
    """Add a block's votes to sums and counts. List the places with votes and return their number.

    `addresses` [members, 3] point to positions, values (int64 if `whole`, else int8) and shifts (or
    0). `low` is the position of the block's first place. Each value is clamped to +-`most`.
    """
    # Members can be numerous and their votes large, so votes are read where they are.
    count = 0
    for member in range(len(addresses)):
        first = starts[member, block]
        last = stops[member, block]
        if first == last:
            continue
        positions = array_at(addresses[member, 0], last, np.int64)
        small = array_at(addresses[member, 1], last, np.int8)
        large = array_at(addresses[member, 1], last, np.int64)
        shifts = array_at(addresses[member, 2], last, np.uint8)
        shifted = addresses[member, 2] != 0
        for v in range(first, last):
            place = positions[v] - low
            value = large[v] if whole else np.int64(small[v])
            if shifted:
                value <<= np.int64(shifts[v])
            if counts[place] == 0:
                touched[count] = place
                count += 1
            counts[place] += 1
            sums[place] += min(max(value, -most), most)
    return count


@kernel(
    "void(f4[::1], i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8[:,::1], b1, i8[:,::1], i8[:,::1], i8, f8[::1], f8)"
)
def apply_mean(
    parameters: Floats,
    stride: int,
    rows: int,
    columns: int,
    height: int,
    width: int,
    across: int,
    first: int,
    last: int,
    low: int,
    block: int,
    addresses: Numbers,
    whole: bool,
    starts: Numbers,
    stops: Numbers,
    most: int,
    divisors: Doubles,
    rate: float,
) -> None:
    """Apply x <- x - fp32(sum / divisors[count] * rate) to blocks [first, last) of a segment.

    The segment is [rows, columns] with row stride `stride` and `across` blocks per row. Its first
    position is `low` and its first block is `block` among all.
    """
    size = height * width
    sums = np.zeros(size, np.int64)
    counts = np.zeros(size, np.int64)
    touched = np.empty(size, np.int64)
    for number in range(first, last):
        touched_count = _count(
            addresses,
            whole,
            starts,
            stops,
            block + number,
            low + number * size,
            most,
            sums,
            counts,
            touched,
        )
        top = number // across * height
        left = number % across * width
        for t in range(touched_count):
            place = touched[t]
            y: Any = np.int64(np.uint32(place) // np.uint32(width))
            x = place - y * width
            step = np.float32(np.float64(sums[place]) / divisors[counts[place]] * rate)
            sums[place] = counts[place] = 0
            if top + y < rows and left + x < columns:
                parameters[(top + y) * stride + left + x] -= step


@kernel(
    "void(f4[::1], i8, i8, i8, i8, i8, i8, i8, i8, i8, i8, i8[:,::1], i8[:,::1], i8[:,::1], f8[:,::1], f8[:,::1], i8,"
    " i8, f4, f4)"
)
def apply_signs(
    parameters: Floats,
    stride: int,
    rows: int,
    columns: int,
    height: int,
    width: int,
    across: int,
    first: int,
    last: int,
    low: int,
    block: int,
    addresses: Numbers,
    starts: Numbers,
    stops: Numbers,
    turned: Doubles,
    wide: Doubles,
    mean_bits: int,
    sum_bits: int,
    keep: float,
    rate: float,
) -> None:
    """Apply x <- x * keep - rate * sign(inverse DCT of the votes' means).

    Blocks are those of `apply_mean`. turned is the transposed integer basis of the height, wide the
    integer basis of the width. Means have `mean_bits` fractional bits. A basis column sums to at
    most 2**sum_bits.
    """
    size = height * width
    at_once = min(last - first, max(1, _VECTORS // width))
    sums = np.zeros(size, np.int64)
    counts = np.zeros(size, np.int64)
    touched = np.empty(size, np.int64)
    given = np.empty((height, at_once * width))
    result = np.empty_like(given)
    scratch = np.empty_like(given)
    for start in range(first, last, at_once):
        many = min(at_once, last - start)
        given[:] = 0
        for number in range(start, start + many):
            touched_count = _count(
                addresses,
                False,
                starts,
                stops,
                block + number,
                low + number * size,
                1,
                sums,
                counts,
                touched,
            )
            left = (number - start) * width
            for t in range(touched_count):
                place = touched[t]
                total = sums[place] << mean_bits
                count = counts[place]
                average: Any = np.float64((2 * abs(total) + count) // (2 * count))
                sums[place] = counts[place] = 0
                y: Any = np.int64(np.uint32(place) // np.uint32(width))
                _add(
                    given[y, left : left + width],
                    wide[place - y * width],
                    -average if total < 0 else average,
                )
        if height > 1:
            _round(given, 2.0**-sum_bits)
            dct.inverse(turned, given, result, scratch, many * width)
        else:
            result[:] = given
        for number in range(start, start + many):
            top = number // across * height
            left = number % across * width
            own = (number - start) * width
            for y in range(min(height, rows - top)):
                at = (top + y) * stride + left
                reach = min(width, columns - left)
                _move(parameters[at : at + reach], result[y, own : own + reach], keep, rate)


@kernel()
def _add(line: Doubles, vector: Doubles, factor: float) -> None:
    """Add factor * vector to a line. All are integers."""
    for x in range(len(line)):
        line[x] += factor * vector[x]


@kernel()
def _round(lines: Doubles, scale: float) -> None:
    """Scale lines by a power of two and round to integers, halves to even."""
    for y in range(len(lines)):
        line = lines[y]
        for x in range(len(line)):
            line[x] = line[x] * scale + _TO_WHOLE - _TO_WHOLE


@kernel()
def _move(parameters: Floats, towards: Doubles, keep: float, rate: float) -> None:
    """Apply x <- x * keep - rate * sign(towards), where the sign of -0 is 0."""
    for x in range(len(parameters)):
        sign = np.float32(min(max(towards[x], -1.0), 1.0) + 0.0)
        parameters[x] = parameters[x] * keep - sign * rate
