"""Encode, check and count sparse results, for a group or a whole level.

A table int64 [parts, COLUMNS] and the part of each block locate a block's bits in a payload
(`optim.packed_sparse`). Payloads stay packed: a program reads the code of one block in place.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aftermath.kernels.triton_levels import _cells, _digit, _exponent, _number

COLUMNS = 8
"""Columns of the table:

0: numbers of a block; 1: entries of a block, its top-k; 2: low bits of an index, or -1 for blocks
of digits; 3: bits of a block's index code; 4: the part's first block in canonical order; 5, 6, 7:
its first index bit, entry and digit.
"""

_NUMBERS = ["exponents_at", "signs_at", "sizes_at", "digits_at", "most", "members", "size", "count"]
"""Arguments that differ between levels and rounds. Triton must not compile for each value."""

# A sum and the number of its votes share an int64: sum * 2^COUNT_BITS + count. A sum stays below
# 2^53 and a count is at most 256, so one integer addition per vote is exact in any order.
COUNT_BITS: tl.constexpr = tl.constexpr(9)
_COUNTS: tl.constexpr = tl.constexpr((1 << 9) - 1)


@triton.jit
def _bits(payload: tl.tensor, bit: tl.tensor, count: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return the `count` bits from each bit number on, at most 15, or 0 outside of `inside`."""
    own = payload + (bit >> 3)
    shift = (bit & 7).to(tl.int32)
    end = shift + count
    word = tl.load(own, mask=inside, other=0).to(tl.int32)
    word |= tl.load(own + 1, mask=inside & (end > 8), other=0).to(tl.int32) << 8
    word |= tl.load(own + 2, mask=inside & (end > 16), other=0).to(tl.int32) << 16
    return (word >> shift) & ((1 << count) - 1)


@triton.jit
def _row(
    table: tl.tensor, part_of: tl.tensor, block: tl.tensor, COLUMNS: tl.constexpr
) -> tl.tensor:
    """Return a block's row of the table, its size, entries, low bits, and number in its part."""
    row = table + tl.load(part_of + block).to(tl.int64) * COLUMNS
    size = tl.load(row).to(tl.int32)
    topk = tl.load(row + 1).to(tl.int32)
    low = tl.load(row + 2).to(tl.int32)
    return row, size, topk, low, block - tl.load(row + 4)


@triton.jit
def _checked_digits(
    payload: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    digits_at: tl.tensor,
    LANES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> tl.tensor:
    """Return the number of votes in a block of digits, and whether a code is not valid."""
    members = size * 0
    bad = size * 0
    for first in range(0, size, LANES):
        lanes = first + tl.arange(0, LANES)
        inside = lanes < size
        number, place = _number(payload, lanes, inside, start, digits_at, TOGETHER, WIDTH)
        code = tl.where(inside, _digit(number, place, TOGETHER, RADIX), 0)
        bad = tl.maximum(bad, tl.max((inside & (number >= RADIX**TOGETHER)).to(tl.int32), axis=0))
        members += tl.sum((code > 0).to(tl.int32), axis=0)
    return members, bad


@triton.jit
def _checked_entries(
    payload: tl.tensor,
    row: tl.tensor,
    number: tl.tensor,
    size: tl.tensor,
    topk: tl.tensor,
    low: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    LANES: tl.constexpr,
    SIZES: tl.constexpr,
) -> tl.tensor:
    """Return the number of entries in a block's index code, and whether a bit is not valid."""
    width = tl.load(row + 3)
    start = tl.load(row + 5) + number * width
    bitmap = start + topk * low
    length = (width - topk * low).to(tl.int32)
    members = size * 0
    bad = size * 0
    for first in range(0, length, LANES):
        lanes = first + tl.arange(0, LANES)
        inside = lanes < length
        bit = _bits(payload, bitmap + lanes, 1, inside)
        entry = members + tl.cumsum(bit, axis=0) - 1
        used = (bit > 0) & (entry < topk)
        lows = _bits(payload, start + entry.to(tl.int64) * low, low, used)
        index = (lanes << low) | lows
        if low > 0:
            index = ((lanes - entry) << low) | lows
        # Entries with equal high bits have adjacent bits in the bitmap. Their low bits must ascend.
        after = used & (entry > 0) & (lanes * 0 + low > 0)
        after = after & (_bits(payload, bitmap + lanes - 1, 1, after) > 0)
        before = _bits(payload, start + (entry - 1).to(tl.int64) * low, low, after)
        wrong = (used & (index >= size)) | (after & (lows <= before))
        bad = tl.maximum(bad, tl.max(wrong.to(tl.int32), axis=0))
        members += tl.sum(bit, axis=0)
    bad = tl.maximum(bad, (members > topk).to(tl.int32))
    own = tl.load(row + 6) + number * topk
    for first in range(0, topk, LANES):
        entries = first + tl.arange(0, LANES)
        unused = (entries < topk) & (entries >= members)
        stray = _bits(payload, signs_at * 8 + own + entries, 1, unused)
        stray |= _bits(payload, start + entries.to(tl.int64) * low, low, unused)
        if SIZES:
            stray |= _bits(payload, sizes_at * 8 + own + entries, 1, unused)
        bad = tl.maximum(bad, tl.max((stray > 0).to(tl.int32), axis=0))
    return members, bad


@triton.jit(do_not_specialize=_NUMBERS)
def check_sparse(
    payload: tl.tensor,
    table: tl.tensor,
    part_of: tl.tensor,
    wrong: tl.tensor,
    exponents_at: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    digits_at: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    EXPONENTS: tl.constexpr,
    SIZES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> None:
    """Set wrong, uint8 [blocks], to 1 for blocks that no encoder would write.

    EXPONENTS is 0 for signs. The four arguments before COLUMNS are the bytes where strings begin.
    """
    block = tl.program_id(0)
    row, size, topk, low, number = _row(table, part_of, block, COLUMNS)
    members = size * 0
    bad = size * 0
    if low < 0:
        start = tl.load(row + 7) + number * size
        members, bad = _checked_digits(
            payload, start, size, digits_at, LANES, TOGETHER, WIDTH, RADIX
        )
        bad = tl.maximum(bad, (members > topk).to(tl.int32))
    else:
        members, bad = _checked_entries(
            payload, row, number, size, topk, low, signs_at, sizes_at, LANES, SIZES
        )
    if EXPONENTS > 0:
        exponent = _exponent(payload + exponents_at, block)
        fits = tl.where(members > 0, (exponent >= 1) & (exponent <= EXPONENTS), exponent == 0)
        bad = tl.where(fits, bad, 1)
    tl.store(wrong + block, bad.to(tl.uint8))


@triton.jit
def _add_votes(
    sums: tl.tensor,
    spots: tl.tensor,
    voted: tl.tensor,
    negative: tl.tensor,
    three: tl.tensor,
    shift: tl.tensor,
    most: tl.tensor,
) -> None:
    """Add votes of +-1 or +-3 times 2^shift, each clipped to +-`most`, at distinct spots."""
    value = tl.where(negative, -1, 1) * (1 + 2 * three)
    value = value.to(tl.int64) << shift
    value = tl.minimum(tl.maximum(value, -most), most)
    tl.atomic_add(sums + spots, (value << COUNT_BITS) + 1, mask=voted, sem="relaxed")


@triton.jit(do_not_specialize=_NUMBERS)
def add_sparse(
    payloads: tl.tensor,
    table: tl.tensor,
    part_of: tl.tensor,
    numbers: tl.tensor,
    sums: tl.tensor,
    most: tl.tensor,
    exponents_at: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    digits_at: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    EXPONENTS: tl.constexpr,
    SIZES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> None:
    """Add the votes of all members to sums int64 [blocks, size]: a program per block and member.

    payloads int64 [members] are addresses of payloads that were checked. numbers int64 [blocks] are
    the canonical numbers of the blocks.
    """
    payload = tl.load(payloads + tl.program_id(1)).to(tl.pointer_type(tl.uint8))
    block = tl.load(numbers + tl.program_id(0))
    row, size, topk, low, number = _row(table, part_of, block, COLUMNS)
    own = sums + tl.program_id(0).to(tl.int64) * size
    shift = number * 0
    if EXPONENTS > 0:
        shift = tl.maximum(_exponent(payload + exponents_at, block) - 1, 0).to(tl.int64)
    if low < 0:
        start = tl.load(row + 7) + number * size
        for first in range(0, size, LANES):
            lanes = first + tl.arange(0, LANES)
            inside = lanes < size
            packed, place = _number(payload, lanes, inside, start, digits_at, TOGETHER, WIDTH)
            code = tl.where(inside, _digit(packed, place, TOGETHER, RADIX), 0)
            three = (code > 2).to(tl.int32)
            _add_votes(own, lanes, code > 0, code % 2 == 0, three, shift, most)
    else:
        width = tl.load(row + 3)
        code_at = tl.load(row + 5) + number * width
        bitmap = code_at + topk * low
        length = (width - topk * low).to(tl.int32)
        entries = tl.load(row + 6) + number * topk
        before = size * 0
        for first in range(0, length, LANES):
            lanes = first + tl.arange(0, LANES)
            bit = _bits(payload, bitmap + lanes, 1, lanes < length)
            entry = before + tl.cumsum(bit, axis=0) - 1
            voted = bit > 0
            lows = _bits(payload, code_at + entry.to(tl.int64) * low, low, voted)
            index = (lanes << low) | lows
            if low > 0:
                index = ((lanes - entry) << low) | lows
            negative = _bits(payload, signs_at * 8 + entries + entry, 1, voted)
            three = bit * 0
            if SIZES:
                three = _bits(payload, sizes_at * 8 + entries + entry, 1, voted)
            _add_votes(own, index, voted, negative > 0, three, shift, most)
            before += tl.sum(bit, axis=0)


@triton.jit(do_not_specialize=_NUMBERS)
def mean_of_sums(
    table: tl.tensor,
    part_of: tl.tensor,
    numbers: tl.tensor,
    sums: tl.tensor,
    members: tl.tensor,
    divisors: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Apply x <- x - fp32(sum / divisors[count] * rate) to the blocks `numbers`.

    Where table column 12 is 0, store the mean instead. The table is that of `triton_levels`. sums
    are those of `add_sparse`; divisors float64 [members + 2] ends with the rate.
    """
    block = tl.load(numbers + tl.program_id(0))
    row, _number, size, lanes, held, own = _cells(block, table, part_of, COLUMNS, LANES)
    packed = tl.load(
        sums + tl.program_id(0).to(tl.int64) * size + lanes, mask=lanes < size, other=0
    )
    count = packed & _COUNTS
    divisor = tl.load(divisors + count, mask=held & (count > 0), other=1.0)
    total = (packed >> COUNT_BITS).to(tl.float64)
    change = (total / divisor * tl.load(divisors + members + 1)).to(tl.float32)
    if tl.load(row + 12) > 0:
        changed = held & (count > 0)
        tl.store(own, tl.load(own, mask=changed, other=0.0) - change, mask=changed)
    else:
        tl.store(own, change, mask=held)


@triton.jit(do_not_specialize=_NUMBERS)
def means_of_sums(
    sums: tl.tensor,
    means: tl.tensor,
    size: tl.tensor,
    MEAN_BITS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Store the means of sign votes that `optim.exact_signs` transforms, float64 [size]."""
    lanes = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    packed = tl.load(sums + lanes, mask=lanes < size, other=0)
    count = packed & _COUNTS
    total = packed >> COUNT_BITS
    magnitude = ((2 * (tl.abs(total) << MEAN_BITS) + count) // tl.maximum(2 * count, 1)).to(
        tl.float64
    )
    tl.store(means + lanes, tl.where(total < 0, -magnitude, magnitude), mask=lanes < size)


@triton.jit(do_not_specialize=_NUMBERS)
def write_sparse(
    indices: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    part_of: tl.tensor,
    numbers: tl.tensor,
    bits: tl.tensor,
    digits: tl.tensor,
    exponents_at: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    EXPONENTS: tl.constexpr,
    SIZES: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Store a group's index codes, exponents, signs and sizes as bits, and its digits as codes.

    indices int64 and values fp32 [blocks, topk]. bits and digits uint8 are 0 before; bits has a
    number per bit of the payload.
    """
    block = tl.load(numbers + tl.program_id(0))
    row, size, topk, low, number = _row(table, part_of, block, COLUMNS)
    entry = tl.program_id(1) * LANES + tl.arange(0, LANES)
    at = tl.program_id(0).to(tl.int64) * topk + entry
    index = tl.load(indices + at, mask=entry < topk, other=65535)
    used = (entry < topk) & (index != 65535)
    value = tl.load(values + at, mask=used, other=0.0)
    word = value.to(tl.int32, bitcast=True)
    three = word * 0
    one = (word * 0 + 1).to(tl.uint8)
    if EXPONENTS > 0:
        three = (word >> 22) & 1
        exponent = tl.where(used, ((word >> 23) & 0xFF) - 127 - three - LEAST + 1, 0)
        own_exponent = bits + exponents_at * 8 + block * 6
        for bit_number in tl.static_range(0, 6):
            exponent_bit = ((exponent >> bit_number) & 1).to(tl.uint8)
            tl.store(own_exponent + bit_number + entry, exponent_bit, mask=entry == 0)
    if low < 0:
        code = tl.where(value < 0, 2, 1) + 2 * three
        own = digits + tl.load(row + 7) + number * size
        tl.store(own + index, code.to(tl.uint8), mask=used)
    else:
        code_at = bits + tl.load(row + 5) + number * tl.load(row + 3)
        for place in range(low):
            bit = ((index >> place) & 1).to(tl.uint8)
            tl.store(code_at + entry.to(tl.int64) * low + place, bit, mask=used)
        high = index >> low
        if low > 0:
            high = high + entry
        tl.store(code_at + topk * low + high, one, mask=used)
        own_entry = tl.load(row + 6) + number * topk + entry
        tl.store(bits + signs_at * 8 + own_entry, one, mask=used & (value < 0))
        if SIZES:
            tl.store(bits + sizes_at * 8 + own_entry, one, mask=used & (three > 0))


@triton.jit(do_not_specialize=_NUMBERS)
def pack_codes(
    codes: tl.tensor,
    octets: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    LANES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> None:
    """Pack `count` codes of digits, uint8, into octets uint8 [size] like `optim.digits`."""
    byte = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = byte < size
    first = byte * 8 // WIDTH
    shift = (byte * 8 - first * WIDTH).to(tl.int32)
    number = shift * 0
    following = shift * 0
    for step in tl.static_range(0, TOGETHER):
        place = TOGETHER - 1 - step
        at = first * TOGETHER + place
        code = tl.load(codes + at, mask=inside & (at < count), other=0).to(tl.int32)
        number = number * RADIX + code
        at += TOGETHER
        reached = inside & (at < count) & (shift + 8 > WIDTH)
        code = tl.load(codes + at, mask=reached, other=0).to(tl.int32)
        following = following * RADIX + code
    octet = (number | (following << WIDTH)) >> shift
    tl.store(octets + byte, octet.to(tl.uint8), mask=inside)
