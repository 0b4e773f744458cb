"""Check and count packed digits, and move numbers between blocks and tensors, for a whole level.

A table int64 [parts, COLUMNS] and the part of each block describe a level (`optim.level_kernels`).
Payloads stay packed: a lane reads its own digit from each member's bytes.
"""

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 14
"""Columns of the table:

0 to 3: address and three strides of a tensor [matrices, rows, columns]; 4, 5: its rows and columns;
6, 7: a block's height and width; 8, 9: blocks per row of blocks and per matrix; 10, 11: the part's
first block and its first number in canonical order; 12: subtract a mean from the tensor (1) or
store it there (0); 13: the address of the part's rows of blocks, or its first number's position.
"""


@triton.jit
def _number(
    payload: tl.tensor,
    lanes: tl.tensor,
    inside: tl.tensor,
    start: tl.tensor,
    digits_at: tl.tensor,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Return the packed number that has the digit `start` + lane, and the digit's place in it."""
    first = start // TOGETHER
    offset = (start - first * TOGETHER).to(tl.int32) + lanes
    quotient = offset // TOGETHER
    bit = first * WIDTH
    bits = (bit % 8).to(tl.int32) + quotient * WIDTH
    own = payload + digits_at + bit // 8 + (bits >> 3)
    shift = bits & 7
    low = tl.load(own, mask=inside, other=0).to(tl.int32)
    high = tl.load(own + 1, mask=inside & (shift + WIDTH > 8), other=0).to(tl.int32)
    return ((low | (high << 8)) >> shift) & ((1 << WIDTH) - 1), offset - quotient * TOGETHER


@triton.jit
def _digit(
    number: tl.tensor, place: tl.tensor, TOGETHER: tl.constexpr, RADIX: tl.constexpr
) -> tl.tensor:
    """Return the code of the digit at a place: 0, or 1 to 4 for 1, -1, 3 and -3."""
    rest = number
    code = number % RADIX
    for step in tl.static_range(1, TOGETHER):
        rest = rest // RADIX
        code = tl.where(place == step, rest % RADIX, code)
    return code


@triton.jit
def _exponent(payload: tl.tensor, block: tl.tensor) -> tl.tensor:
    """Return the 6-bit code of a block's power of two."""
    bit = block.to(tl.int64) * 6
    shift = (bit % 8).to(tl.int32)
    low = tl.load(payload + bit // 8).to(tl.int32)
    high = tl.load(payload + bit // 8 + 1, mask=shift > 2, other=0).to(tl.int32)
    return ((low | (high << 8)) >> shift) & 63


@triton.jit
def _cells(
    block: tl.tensor,
    table: tl.tensor,
    part_of: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
) -> tl.tensor:
    """Locate a program's lanes, which are numbers of one block.

    Return the table row of the block's part, the block's number in the part, its size, the lanes, a
    mask of the lanes inside the tensor, and their addresses there.
    """
    row = table + tl.load(part_of + block).to(tl.int64) * COLUMNS
    height = tl.load(row + 6).to(tl.int32)
    width = tl.load(row + 7).to(tl.int32)
    across = tl.load(row + 8).to(tl.int32)
    each = tl.load(row + 9).to(tl.int32)
    number = (block - tl.load(row + 10)).to(tl.int32)
    size = height * width
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    matrix = (number // each).to(tl.int64)
    within = number % each
    y = (within // across) * height + lanes // width
    x = (within % across) * width + lanes % width
    held = (lanes < size) & (y < tl.load(row + 4)) & (x < tl.load(row + 5))
    tensor = tl.load(row).to(tl.pointer_type(tl.float32)) + matrix * tl.load(row + 1)
    tensor = tensor + y.to(tl.int64) * tl.load(row + 2) + x.to(tl.int64) * tl.load(row + 3)
    return row, number, size, lanes, held, tensor


@triton.jit
def check(
    payload: tl.tensor,
    table: tl.tensor,
    part_of: tl.tensor,
    wrong: tl.tensor,
    digits_at: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
    EXPONENTS: tl.constexpr,
) -> None:
    """Set wrong uint8 [blocks] for blocks with an invalid packed number or exponent."""
    block = tl.program_id(0)
    row = table + tl.load(part_of + block).to(tl.int64) * COLUMNS
    size = (tl.load(row + 6) * tl.load(row + 7)).to(tl.int32)
    start = tl.load(row + 11) + (block - tl.load(row + 10)) * size
    voted = size * 0
    beyond = size * 0
    for first in range(0, size, LANES):
        lanes = first + tl.arange(0, LANES)
        inside = lanes < size
        number, place = _number(payload, lanes, inside, start, digits_at, TOGETHER, WIDTH)
        code = tl.where(inside, _digit(number, place, TOGETHER, RADIX), 0)
        beyond = tl.maximum(
            beyond, tl.max((inside & (number >= RADIX**TOGETHER)).to(tl.int32), axis=0)
        )
        voted = tl.maximum(voted, tl.max((code > 0).to(tl.int32), axis=0))
    exponent = _exponent(payload, block)
    fits = tl.where(voted > 0, (exponent >= 1) & (exponent <= EXPONENTS), exponent == 0)
    tl.store(wrong + block, ((beyond > 0) | (fits == 0)).to(tl.uint8))


@triton.jit
def apply_mean(
    table: tl.tensor,
    part_of: tl.tensor,
    payloads: tl.tensor,
    members: tl.tensor,
    digits_at: tl.tensor,
    most: tl.tensor,
    divisors: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> None:
    """Apply x <- x - fp32(sum / divisors[count] * rate) to all blocks of a level.

    Where table column 12 is 0, store the mean instead. payloads int64 [members] are addresses;
    divisors float64 [members + 2] ends with the rate.
    """
    block = tl.program_id(0)
    part = table + tl.load(part_of + block).to(tl.int64) * COLUMNS
    length = (tl.load(part + 6) * tl.load(part + 7)).to(tl.int32)
    start = tl.load(part + 11) + (block - tl.load(part + 10)) * length
    spots = tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = spots < length
    sums = spots.to(tl.int64) * 0
    counts = spots * 0
    for member in range(members):
        payload = tl.load(payloads + member).to(tl.pointer_type(tl.uint8))
        packed, place = _number(payload, spots, inside, start, digits_at, TOGETHER, WIDTH)
        code = tl.where(inside, _digit(packed, place, TOGETHER, RADIX), 0)
        size_of = tl.where(code > 2, 3, tl.where(code > 0, 1, 0))
        value = tl.where(code % 2 == 0, -size_of, size_of).to(tl.int64)
        value = value << tl.maximum(_exponent(payload, block) - 1, 0).to(tl.int64)
        sums += tl.minimum(tl.maximum(value, -most), most)
        counts += (code > 0).to(tl.int32)
    # Addresses take registers that the loop needs, so compute them after it.
    row, _block, _size, _lanes, held, own = _cells(block, table, part_of, COLUMNS, LANES)
    divisor = tl.load(divisors + counts, mask=held & (counts > 0), other=1.0)
    change = (sums.to(tl.float64) / divisor * tl.load(divisors + members + 1)).to(tl.float32)
    if tl.load(row + 12) > 0:
        changed = held & (counts > 0)
        tl.store(own, tl.load(own, mask=changed, other=0.0) - change, mask=changed)
    else:
        tl.store(own, change, mask=held)


@triton.jit
def gather(
    table: tl.tensor,
    part_of: tl.tensor,
    by: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Set blocks <- blocks * decay + factor * tensors for a level, and 0 outside the tensors.

    `by` fp32 [2] holds decay and factor.
    """
    row, number, size, lanes, held, tensor = _cells(
        tl.program_id(0), table, part_of, COLUMNS, LANES
    )
    own = tl.load(row + 13).to(tl.pointer_type(tl.float32)) + number.to(tl.int64) * size + lanes
    before = tl.load(own, mask=held, other=0.0) * tl.load(by)
    added = tl.load(tensor, mask=held, other=0.0) * tl.load(by + 1)
    tl.store(own, tl.where(held, before + added, 0.0), mask=lanes < size)


@triton.jit
def step_by_signs(
    table: tl.tensor,
    part_of: tl.tensor,
    by: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    """Apply tensors <- tensors - rate * sign(blocks) to a level; `by` fp32 [1] is the rate."""
    row, number, size, lanes, held, tensor = _cells(
        tl.program_id(0), table, part_of, COLUMNS, LANES
    )
    block_of = (
        tl.load(row + 13).to(tl.pointer_type(tl.float32)) + number.to(tl.int64) * size + lanes
    )
    way = tl.load(block_of, mask=held, other=0.0)
    rate = tl.load(by)
    change = tl.where(way > 0, rate, tl.where(way < 0, -rate, 0.0))
    tl.store(tensor, tl.load(tensor, mask=held, other=0.0) - change, mask=held)


@triton.jit
def subtract_sent(
    rows: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    size: tl.tensor,
    topk: tl.tensor,
    LANES: tl.constexpr,
) -> None:
    """Subtract values from rows fp32 [blocks, size] at the used indices int64 [blocks, topk].

    Used indices of a block are distinct.
    """
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    index = tl.load(indices + block * topk + lanes, mask=lanes < topk, other=65535)
    used = (lanes < topk) & (index != 65535)
    own = rows + block * size + index
    value = tl.load(values + block * topk + lanes, mask=used, other=0.0)
    tl.store(own, tl.load(own, mask=used, other=0.0) - value, mask=used)


@triton.jit
def write_codes(
    indices: tl.tensor,
    values: tl.tensor,
    starts: tl.tensor,
    numbers: tl.tensor,
    digits: tl.tensor,
    exponents: tl.tensor,
    size: tl.tensor,
    LANES: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Store uint8 codes of digits and exponents for a group's lattice values.

    Digits are in canonical order and 0 before. indices int64 and values fp32 [blocks, size];
    `starts` and `numbers` give each block's first digit and its number.
    """
    block = tl.program_id(0)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    at = block.to(tl.int64) * size + lanes
    index = tl.load(indices + at, mask=lanes < size, other=65535)
    used = (lanes < size) & (index != 65535)
    value = tl.load(values + at, mask=used, other=0.0)
    bits = value.to(tl.int32, bitcast=True)
    three = (bits >> 22) & 1
    code = tl.where(value < 0, 2, 1) + 2 * three
    tl.store(digits + tl.load(starts + block) + index, code.to(tl.uint8), mask=used)
    exponent = tl.where(used, ((bits >> 23) & 0xFF) - 127 - three - LEAST + 1, 0)
    tl.store(exponents + tl.load(numbers + block) + lanes, exponent.to(tl.uint8), mask=lanes == 0)
