"""Kernels for results with few numbers: sets of places to ranks and back, signs and sizes, a lane for a block.

A set's rank, and the table that makes it, are those of `optim.ranks`. Groups of blocks are described by rows int64
[groups, COLUMNS] (`optim.sparse_payloads`); a payload is addressed by bits. A number's limbs lie in memory, int64
[limbs, blocks], and each lane works on its own column.
"""

from __future__ import annotations

import triton
import triton.language as tl

COLUMNS = 12
"""Of a group: its blocks, its places and entries in a block, how many of the last entries have short weights, bits of a
rank (0: digits), addresses of the weights and the short weights, of its limbs, of its indices and values, its first
position, and the first of its blocks and of its programs (32 bits each).
"""


@triton.jit
def _parts(weights: tl.tensor) -> tl.tensor:
    """The limb that a weight begins in, and what it has of this one and of the next."""
    length = weights >> 32
    shifted = (weights & 0xFFFFFFFF) << (length & 31)
    return length >> 5, shifted & 0xFFFFFFFF, shifted >> 32


@triton.jit
def _bits(payload: tl.tensor, at: tl.tensor, count: tl.tensor, held: tl.tensor) -> tl.tensor:
    """Up to 32 bits of a payload from bit `at` on, int64; no byte without one of them is read."""
    shift = at & 7
    byte = payload + (at >> 3)
    found = tl.load(byte, mask=held & (count > 0), other=0).to(tl.int64)
    for number in tl.static_range(1, 5):
        wanted = held & (shift + count > 8 * number)
        found |= tl.load(byte + number, mask=wanted, other=0).to(tl.int64) << (8 * number)
    one = count.to(tl.int64) * 0 + 1
    return (found >> shift) & ((one << count) - 1)


@triton.jit
def _search(row: tl.tensor, keys: tl.tensor, size: tl.tensor, held: tl.tensor, STEPS: tl.constexpr) -> tl.tensor:
    """The last of ascending numbers that is not above the key, int32."""
    low = (keys * 0).to(tl.int32)
    high = low + size.to(tl.int32)
    for _ in range(STEPS):
        middle = (low + high) // 2
        more = low < high
        reached = more & (tl.load(row + middle, mask=held & more, other=0) <= keys)
        high = tl.where(more & (reached == 0), middle, high)
        low = tl.where(reached, middle + 1, low)
    return low - 1


@triton.jit
def _key(limbs: tl.tensor, top: tl.tensor, stride: tl.tensor, lanes: tl.tensor, held: tl.tensor) -> tl.tensor:
    """The highest limb that is not 0, or the first; and the number as weights are written: length and 32 bits."""
    high = tl.load(limbs + top * stride + lanes, mask=held, other=1)
    empty = (high == 0) & (top > 1)
    while tl.max(empty.to(tl.int32), axis=0) > 0:
        top = tl.where(empty, top - 1, top)
        high = tl.load(limbs + top * stride + lanes, mask=held, other=1)
        empty = (high == 0) & (top > 1)
    low = tl.load(limbs + (top - 1) * stride + lanes, mask=held, other=0)
    length = (high.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1022
    length = tl.where(high == 0, 0, length)
    significand = (high << (32 - length)) | (low >> length)
    return top, ((top * 32 + length - 32) << 32) | significand


@triton.jit
def _subtract(limbs: tl.tensor, weights: tl.tensor, stride: tl.tensor, lanes: tl.tensor, held: tl.tensor) -> None:
    """Take weights off numbers that are not below them."""
    at, low, high = _parts(weights)
    own = limbs + at * stride + lanes
    rest = tl.load(own, mask=held, other=0) - low
    tl.store(own, rest & 0xFFFFFFFF, mask=held)
    own += stride
    rest = tl.load(own, mask=held, other=0) - high + (rest >> 32)
    tl.store(own, rest & 0xFFFFFFFF, mask=held)
    rest = tl.where(held, rest >> 32, 0)
    while tl.min(rest, axis=0) < 0:
        own += stride
        borrowing = held & (rest < 0)
        rest = rest + tl.load(own, mask=borrowing, other=0)
        tl.store(own, rest & 0xFFFFFFFF, mask=borrowing)
        rest = tl.where(borrowing, rest >> 32, 0)


@triton.jit
def _vote(
    payload: tl.tensor,
    entry: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    used: tl.tensor,
    held: tl.tensor,
    VALUE_BITS: tl.constexpr,
) -> tl.tensor:
    """The value of an entry that has bits of its own, and whether one is set that belongs to no vote."""
    one = entry * 0 + 1
    sign = _bits(payload, signs_at + entry, one, held)
    size = sign * 0
    if VALUE_BITS == 2:
        size = _bits(payload, sizes_at + entry, one, held)
    value = (1 - 2 * sign) * (1 + 2 * size)
    return tl.where(used, value, 0), held & (used == 0) & ((sign | size) != 0)


@triton.jit
def _put(
    positions: tl.tensor,
    values: tl.tensor,
    shifts: tl.tensor,
    entry: tl.tensor,
    position: tl.tensor,
    value: tl.tensor,
    shift: tl.tensor,
    which: tl.tensor,
) -> None:
    """Write an entry."""
    tl.store(positions + entry, position, mask=which)
    tl.store(values + entry, value.to(tl.int8), mask=which)
    tl.store(shifts + entry, shift.to(tl.uint8), mask=which)


@triton.jit
def _digits(
    payload: tl.tensor,
    at: tl.tensor,
    places: tl.tensor,
    most: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    shifts: tl.tensor,
    entry: tl.tensor,
    base: tl.tensor,
    shift: tl.tensor,
    held: tl.tensor,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> tl.tensor:
    """Write the entries of blocks that are digits; whose are none, or too many, and how many entries are used."""
    bad = held & (at < 0)
    kept = at * 0
    for spot in range(places.to(tl.int32)):
        offset = (at & 7) + spot
        packed = _bits(payload, (at >> 3) + offset // TOGETHER * WIDTH, at * 0 + WIDTH, held)
        inside = offset % TOGETHER
        remaining = packed
        digit = packed % RADIX
        for before_it in tl.static_range(1, TOGETHER):
            remaining = remaining // RADIX
            digit = tl.where(inside == before_it, remaining % RADIX, digit)
        bad = bad | (held & (packed >= RADIX**TOGETHER))
        amount = tl.where(digit > 2, 3, 1)
        amount = tl.where(digit % 2 == 0, -amount, amount)
        voted = held & (digit > 0)
        _put(positions, values, shifts, entry + kept, base + spot, amount, shift, voted & (kept < most))
        kept += voted.to(tl.int64)
    return bad | (kept > most), kept


@triton.jit
def decode(
    payload: tl.tensor,
    groups: tl.tensor,
    group_of: tl.tensor,
    places_at: tl.tensor,
    entries_at: tl.tensor,
    own_entries_at: tl.tensor,
    numbers: tl.tensor,
    exponents_at: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    positions: tl.tensor,
    values: tl.tensor,
    shifts: tl.tensor,
    wrong: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    LATTICE: tl.constexpr,
    EXPONENTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIX: tl.constexpr,
) -> None:
    """The votes of a level: positions int64 [entries], -1 where an entry is not used, values int8, shifts uint8.

    By block, group after group: `places_at` is the bit of its rank, or of the packed number of its first digit times 8
    plus that digit's place in it; `entries_at` its first entry, `own_entries_at` its first among those with bits of
    their own, `numbers` its number in canonical order. wrong uint8 [blocks] says whose bits mean nothing.
    """
    program = tl.program_id(0)
    row = groups + tl.load(group_of + program).to(tl.int64) * COLUMNS
    blocks = tl.load(row)
    places = tl.load(row + 1)
    most = tl.load(row + 2).to(tl.int32)
    short = tl.load(row + 3).to(tl.int32)
    rank_bits = tl.load(row + 4)
    before = tl.load(row + 11) & 0xFFFFFFFF  # the first of its programs
    first = tl.load(row + 11) >> 32  # and of its blocks
    lanes = (program - before) * LANES + tl.arange(0, LANES)
    held = lanes < blocks
    at = tl.load(places_at + first + lanes, mask=held, other=0)
    entry = tl.load(entries_at + first + lanes, mask=held, other=0)
    own_entry = tl.load(own_entries_at + first + lanes, mask=held, other=0)
    base = tl.load(row + 10) + lanes * places
    shift = lanes * 0
    code = shift
    if LATTICE:
        canonical = tl.load(numbers + first + lanes, mask=held, other=0)
        code = _bits(payload, exponents_at + 6 * canonical, canonical * 0 + 6, held)
        shift = tl.maximum(code - 1, 0)
    bad = held & (lanes < 0)
    kept = lanes * 0
    if rank_bits > 0:
        limbs = tl.load(row + 7).to(tl.pointer_type(tl.int64))
        table = tl.load(row + 5).to(tl.pointer_type(tl.int64))
        short_table = tl.load(row + 6).to(tl.pointer_type(tl.int64))
        used = (rank_bits + 31) // 32
        for limb in range(used):
            count = tl.minimum(rank_bits - 32 * limb, 32)
            tl.store(
                limbs + (limb + 1) * blocks + lanes, _bits(payload, at + 32 * limb, lanes * 0 + count, held), mask=held
            )
        top = lanes * 0 + used
        top, key = _key(limbs, top, blocks, lanes, held)
        members = _search(table, key, places + 1, held, STEPS)
        _subtract(limbs, tl.load(table + members, mask=held, other=0), blocks, lanes, held)
        after = (lanes * 0 + places).to(tl.int32)
        for step in range(most - short):
            number = most - step
            top, key = _key(limbs, top, blocks, lanes, held)
            weights = table + number * (places + 1)
            place = _search(weights, key, places + 1, held, STEPS)
            has = held & (members >= number)
            bad = bad | (has & (place >= after))
            ends = has & (bad == 0)
            _subtract(limbs, tl.load(weights + place, mask=ends, other=0), blocks, lanes, held)
            after = tl.where(has, place, after)
            value, stray = _vote(payload, own_entry + number - 1, signs_at, sizes_at, has, held, VALUE_BITS)
            bad = bad | stray
            position = tl.where(has, base + place, -1)
            _put(positions, values, shifts, entry + number - 1, position, value, shift, held)
        for limb in range(3, used + 3):
            bad = bad | (tl.load(limbs + limb * blocks + lanes, mask=held, other=0) != 0)
        high = tl.load(limbs + 2 * blocks + lanes, mask=held, other=0)
        bad = bad | ((high >> 30) != 0)
        rest = (high << 32) | tl.load(limbs + blocks + lanes, mask=held, other=0)
        rest = tl.where(bad, 0, rest)
        for step in range(short):
            number = short - step
            weights = short_table + (number - 1) * (places + 1)
            place = _search(weights, rest, places + 1, held, STEPS)
            has = held & (members >= number)
            bad = bad | (has & (place >= after))
            rest = rest - tl.load(weights + place, mask=has, other=0)
            after = tl.where(has, place, after)
            value, stray = _vote(payload, own_entry + number - 1, signs_at, sizes_at, has, held, VALUE_BITS)
            bad = bad | stray
            position = tl.where(has, base + place, -1)
            _put(positions, values, shifts, entry + number - 1, position, value, shift, held)
        bad = bad | (rest != 0)
        kept = tl.where(held, members, 0).to(tl.int64)
    else:
        bad, kept = _digits(
            payload, at, places, most, positions, values, shifts, entry, base, shift, held, TOGETHER, WIDTH, RADIX
        )
    if LATTICE:
        bad = bad | tl.where(kept > 0, (code < 1) | (code > EXPONENTS), code != 0)
    tl.store(wrong + first + lanes, (bad & held).to(tl.uint8), mask=held)


@triton.jit
def _set(words: tl.tensor, at: tl.tensor, bits: tl.tensor, held: tl.tensor) -> None:
    """Set up to 32 bits from bit `at` on, of words that are 0 there."""
    shifted = (bits & 0xFFFFFFFF) << (at & 31)
    word = words + (at >> 5)
    low = (shifted & 0xFFFFFFFF).to(tl.int32)
    high = (shifted >> 32).to(tl.int32)
    tl.atomic_or(word, low, mask=held & (low != 0))
    tl.atomic_or(word + 1, high, mask=held & (high != 0))


@triton.jit
def encode(
    words: tl.tensor,
    groups: tl.tensor,
    group_of: tl.tensor,
    places_at: tl.tensor,
    own_entries_at: tl.tensor,
    numbers: tl.tensor,
    exponents_at: tl.tensor,
    signs_at: tl.tensor,
    sizes_at: tl.tensor,
    COLUMNS: tl.constexpr,
    LANES: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    LATTICE: tl.constexpr,
    LEAST: tl.constexpr,
) -> None:
    """Set the bits of a payload, int32 words of zeros, but for digits: ranks, exponents, signs and sizes."""
    program = tl.program_id(0)
    row = groups + tl.load(group_of + program).to(tl.int64) * COLUMNS
    blocks = tl.load(row)
    places = tl.load(row + 1)
    most = tl.load(row + 2).to(tl.int32)
    rank_bits = tl.load(row + 4)
    before = tl.load(row + 11) & 0xFFFFFFFF
    first = tl.load(row + 11) >> 32
    lanes = (program - before) * LANES + tl.arange(0, LANES)
    held = lanes < blocks
    indices = tl.load(row + 8).to(tl.pointer_type(tl.int64)) + lanes * most
    sent = tl.load(row + 9).to(tl.pointer_type(tl.float32)) + lanes * most
    if LATTICE:
        canonical = tl.load(numbers + first + lanes, mask=held, other=0)
        bits = tl.load(sent, mask=held, other=0.0).to(tl.int32, bitcast=True)
        exponent = ((bits >> 23) & 0xFF) - 127 - ((bits >> 22) & 1)
        code = tl.where(tl.load(indices, mask=held, other=65535) != 65535, exponent - LEAST + 1, 0)
        _set(words, exponents_at + 6 * canonical, code.to(tl.int64), held)
    if rank_bits > 0:
        limbs = tl.load(row + 7).to(tl.pointer_type(tl.int64))
        table = tl.load(row + 5).to(tl.pointer_type(tl.int64))
        at = tl.load(places_at + first + lanes, mask=held, other=0)
        own_entry = tl.load(own_entries_at + first + lanes, mask=held, other=0)
        members = lanes * 0
        for entry in range(most):
            index = tl.load(indices + entry, mask=held, other=65535)
            used = held & (index != 65535)
            members += used.to(tl.int64)
            weight = tl.load(table + (entry + 1) * (places + 1) + index, mask=used, other=0)
            limb, low, high = _parts(weight)
            own = limbs + limb * blocks + lanes
            tl.store(own, tl.load(own, mask=used, other=0) + low, mask=used)
            tl.store(own + blocks, tl.load(own + blocks, mask=used, other=0) + high, mask=used)
            value = tl.load(sent + entry, mask=used, other=0.0)
            _set(words, signs_at + own_entry + entry, (value < 0).to(tl.int64), used)
            if VALUE_BITS == 2:
                three = (value.to(tl.int32, bitcast=True) >> 22) & 1
                _set(words, sizes_at + own_entry + entry, three.to(tl.int64), used)
        limb, low, high = _parts(tl.load(table + members, mask=held, other=0))
        own = limbs + limb * blocks + lanes
        tl.store(own, tl.load(own, mask=held, other=0) + low, mask=held)
        tl.store(own + blocks, tl.load(own + blocks, mask=held, other=0) + high, mask=held)
        carried = lanes * 0
        for number in range((rank_bits + 31) // 32):
            total = tl.load(limbs + (number + 1) * blocks + lanes, mask=held, other=0) + carried
            carried = total >> 32
            _set(words, at + 32 * number, total & 0xFFFFFFFF, held)
