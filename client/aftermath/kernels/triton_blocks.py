"""Select what to send of each block, and count votes block by block, on a GPU with Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# A step is a division, a multiplication and a rounding. Each must follow IEEE, so forbid fusing.
EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""The options of every kernel call."""


@triton.jit
def choose(
    coefficients: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    size: tl.tensor,
    smallest: tl.tensor,
    TOPK: tl.constexpr,
    LANES: tl.constexpr,
    BITS: tl.constexpr,
    FRACTION: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
) -> None:
    """Select as `optim.transform.strongest`, and with BITS round as `optim.lattice.quantise`.

    One program per block. coefficients fp32 [blocks, size]; indices int64 and values fp32
    [blocks, TOPK], filled with UNUSED and 0 before. `smallest` is the bit pattern of the smallest
    nonzero number. LANES is a power of two, at least `size`.
    """
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    numbers = tl.load(coefficients + block * size + lanes, mask=lanes < size, other=0.0)
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    magnitudes = tl.where(magnitudes < smallest, 0, magnitudes)
    # Build the largest border that TOPK magnitudes reach, bit by bit. It needs no sorting.
    border = 0
    for step in range(31):
        higher = border | (1 << (30 - step))
        border = tl.where(
            tl.sum((magnitudes >= higher).to(tl.int32), axis=0) >= TOPK, higher, border
        )
    above = (magnitudes > border).to(tl.int32)
    equal = ((magnitudes == border) & (magnitudes > 0)).to(tl.int32)
    spare = TOPK - tl.sum(above, axis=0)
    kept = (above > 0) | ((equal > 0) & (tl.cumsum(equal, axis=0) <= spare))
    entries = block * TOPK + tl.cumsum(kept.to(tl.int32), axis=0) - 1
    sent = numbers
    if BITS > 0:
        sent = _quantised(numbers, magnitudes, kept, BITS, FRACTION, LEAST, MOST)
    tl.store(indices + entries, lanes.to(tl.int64), mask=kept)
    tl.store(values + entries, sent, mask=kept)


@triton.jit
def _quantised(
    numbers: tl.tensor,
    magnitudes: tl.tensor,
    kept: tl.tensor,
    BITS: tl.constexpr,
    FRACTION: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
) -> tl.tensor:
    """Round the kept numbers to the block's lattice.

    Exponents come from the bits, since no kept number is subnormal.
    """
    own = tl.where(kept, magnitudes, 0)
    highest = (tl.max(own, axis=0) >> 23) - 127
    exponents = (own >> 23) - 127
    # The integer part of the magnitude times 2^(FRACTION - highest): its 24 bits, shifted right by
    # at least 2.
    whole = ((own & 0x7FFFFF) | 0x800000).to(tl.int64)
    away = tl.minimum(23 - FRACTION + highest - exponents, 62)
    scaled = tl.where(
        kept, tl.where(away >= 0, whole >> tl.maximum(away, 0), whole << tl.maximum(-away, 0)), 0
    )
    count = tl.sum(kept.to(tl.int64), axis=0)
    total = tl.sum(scaled, axis=0)
    mean = (total // tl.maximum(count, 1)).to(tl.float64).to(tl.int64, bitcast=True)
    floor = tl.where(mean > 0, (mean >> 52).to(tl.int32) - 1023, -1)
    best = floor * 0 + MOST
    lowest = total * 0 + 0x7FFFFFFFFFFFFFFF
    for candidate in range(-2, 3):
        exponent = tl.minimum(tl.maximum(floor + candidate + highest - FRACTION, LEAST), MOST)
        places = tl.minimum(tl.maximum(exponent - highest + FRACTION, 0), FRACTION + 2).to(tl.int64)
        unit = (total * 0 + 1) << places
        error = unit * (unit * count - 2 * total)
        if BITS == 2:
            over = tl.where(kept, tl.maximum(scaled - 2 * unit, 0), 0)
            error -= 4 * unit * tl.sum(over, axis=0)
        best = tl.where(error < lowest, exponent, best)
        lowest = tl.minimum(error, lowest)
    one = ((best + 127) << 23).to(tl.float32, bitcast=True)
    sent = one + numbers * 0.0
    if BITS == 2:
        sent = tl.where(tl.abs(numbers) > 2 * one, 3 * one, sent)
    return tl.where(numbers < 0, -sent, sent)


@triton.jit
def _counted(
    places: tl.tensor,
    values: tl.tensor,
    shifts: tl.tensor,
    edges: tl.tensor,
    members: tl.tensor,
    blocks: tl.tensor,
    block: tl.tensor,
    lanes: tl.tensor,
    most: tl.tensor,
    SHIFTED: tl.constexpr,
    STEPS: tl.constexpr,
) -> tl.tensor:
    """Return the sums and counts of a block's votes by lane, both int64."""
    # Each lane searches every member's ascending votes for its own position. So there are no
    # scattered writes, no atomics and no extra memory, and members are added in order.
    sums = lanes.to(tl.int64) * 0
    counts = lanes.to(tl.int64) * 0
    for member in range(members):
        row = edges + member * (blocks + 1) + block
        start = tl.load(row)
        stop = tl.load(row + 1)
        if start < stop:
            low = start + sums * 0
            high = stop + sums * 0
            for _ in range(STEPS):
                middle = (low + high) // 2
                less = (low < high) & (tl.load(places + middle, mask=low < high, other=0) < lanes)
                high = tl.where(less, high, tl.minimum(middle, high))
                low = tl.where(less, middle + 1, low)
            voted = (low < stop) & (tl.load(places + low, mask=low < stop, other=-1) == lanes)
            value = tl.load(values + low, mask=voted, other=0).to(tl.int64)
            if SHIFTED:
                value = value << tl.load(shifts + low, mask=voted, other=0).to(tl.int64)
            sums += tl.minimum(tl.maximum(value, -most), most)
            counts += voted.to(tl.int64)
    return sums, counts


@triton.jit
def mean(
    parameters: tl.tensor,
    stack: tl.tensor,
    stride: tl.tensor,
    step: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    across: tl.tensor,
    each: tl.tensor,
    first: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    shifts: tl.tensor,
    edges: tl.tensor,
    members: tl.tensor,
    blocks: tl.tensor,
    most: tl.tensor,
    divisors: tl.tensor,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """Apply x <- x - fp32(sum / divisors[count] * rate): a program per block and LANES numbers.

    parameters are matrices [rows, columns] with strides `stack`, `stride` and `step`, `across`
    blocks per row and `each` blocks per matrix. `first` is the segment's first block of the level's
    `blocks`. edges int64 [members, blocks + 1] are the starts of each member's votes by block;
    STEPS halvings leave one vote. divisors float64 [members + 2] ends with the rate: Triton would
    pass a float64 scalar as fp32.
    """
    number = tl.program_id(0)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    sums, counts = _counted(
        places, values, shifts, edges, members, blocks, first + number, lanes, most, True, STEPS
    )
    inside = number % each
    row = (inside // across) * height + lanes // width
    column = (inside % across) * width + lanes % width
    changed = (counts > 0) & (lanes < height * width) & (row < rows) & (column < columns)
    own = (
        parameters
        + (number // each).to(tl.int64) * stack
        + row.to(tl.int64) * stride
        + column.to(tl.int64) * step
    )
    divisor = tl.load(divisors + counts, mask=changed, other=1.0)
    moved = (sums.to(tl.float64) / divisor * tl.load(divisors + members + 1)).to(tl.float32)
    tl.store(own, tl.load(own, mask=changed, other=0.0) - moved, mask=changed)


@triton.jit
def means(
    coefficients: tl.tensor,
    size: tl.tensor,
    first: tl.tensor,
    places: tl.tensor,
    values: tl.tensor,
    edges: tl.tensor,
    members: tl.tensor,
    blocks: tl.tensor,
    MEAN_BITS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """Store the means of signs that `optim.exact_signs` transforms, for blocks from `first`.

    coefficients float64 [n, size].
    """
    number = tl.program_id(0)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    sums, counts = _counted(
        places, values, places, edges, members, blocks, first + number, lanes, 1, False, STEPS
    )
    whole = tl.abs(sums) << MEAN_BITS
    found = ((2 * whole + counts) // tl.maximum(2 * counts, 1)).to(tl.float64)
    own = coefficients + number.to(tl.int64) * size + lanes
    tl.store(own, tl.where(sums < 0, -found, found), mask=lanes < size)
