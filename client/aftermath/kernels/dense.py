"""Encode, check and count dense results: one digit per value, no positions.

Results equal those of `optim.error_feedback`, `optim.digits` and `optim.dense_votes` bit by bit. A
level's blocks are in canonical order, and `lines` is the table of `optim.level_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels.jit import array_at, kernel, word_at

_TOGETHER = 8  # codes per word: 7 or 8 bytes
_EXPONENT_BITS = 6
_UNUSED = 0xFFFF

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Octets = NDArray[np.uint8]
Scaled = NDArray[np.int32]


@kernel()
def _exponent(address: int, block: int) -> Any:
    """Return a block's 6-bit code: 0 without votes, else one more than its left shift."""
    bit = _EXPONENT_BITS * block
    return np.int64(word_at(address + (bit >> 3)) >> np.uint64(bit & 7) & np.uint64(63))


@kernel("b1(i8, i8, i8, i8[::1], i8[::1], i8, i8, i8, i8, i1[:,::1])")
def check(
    address: int,
    first: int,
    last: int,
    starts: Numbers,
    sizes: Numbers,
    digits_at: int,
    together: int,
    width: int,
    exponents: int,
    digits: NDArray[np.int8],
) -> bool:
    """Return whether blocks [first, last) of a payload have valid codes and exponents.

    starts and sizes are each block's first digit and number of digits. A code of `width` bits
    stands for `together` digits, a row of `digits`. 16 spare bytes follow the payload.
    """
    mask = np.uint64((1 << width) - 1)
    # A code is valid if adding `rest` does not carry. Only every other code is tested at once, to
    # make room for carries.
    rest = np.uint64((1 << width) - len(digits))
    every = added = carries = np.uint64(0)
    for k in range(0, _TOGETHER, 2):
        every |= mask << np.uint64(width * k)
        added |= rest << np.uint64(width * k)
        carries |= np.uint64(1) << np.uint64(width * k + width)
    other = np.uint64(width)
    for block in range(first, last):
        start = starts[block]
        end = start + sizes[block]
        low = start // together
        high = (end - 1) // together + 1
        some = np.uint64(0)
        worst = np.uint64(0)
        bit = low * width
        at = address + digits_at + (bit >> 3)
        shift = np.uint64(bit & 7)
        whole = (high - low) // _TOGETHER
        for group in range(whole):
            word = word_at(at + group * width) >> shift
            worst |= (word & every) + added
            worst |= (word >> other & every) + added
        for code_number in range(low + whole * _TOGETHER, high):
            worst |= _code(address + digits_at, code_number, width, mask) + rest
        if worst & carries:
            return False
        # Codes at both ends may have digits of other blocks.
        for digit in range(start, min(end, (low + 1) * together)):
            code = _code(address + digits_at, digit // together, width, mask)
            some |= np.uint64(digits[code, digit % together] != 0)
        for digit in range(max(start, (high - 1) * together), end):
            code = _code(address + digits_at, digit // together, width, mask)
            some |= np.uint64(digits[code, digit % together] != 0)
        code_number = low + 1
        while some == 0 and code_number < high - 1:
            some = _code(address + digits_at, code_number, width, mask)
            code_number += 1
        exponent = _exponent(address, block)
        if exponent > exponents or (exponent > 0) != (some > 0):
            return False
    return True


@kernel()
def _code(address: int, number: int, width: int, mask: Any) -> Any:
    """Return one code of the digits that begin at an address."""
    bit = number * width
    return word_at(address + (bit >> 3)) >> np.uint64(bit & 7) & mask


@kernel(
    "void(i8[:,::1], i4[::1], i8, i8, i8[::1], i8, i8, i8, i1[:,::1], u8[::1], i8, u8[::1], i8, i8,"
    " f8[::1], f8)"
)
def apply_mean(
    lines: Numbers,
    part_of: Scaled,
    first: int,
    last: int,
    payloads: Numbers,
    digits_at: int,
    together: int,
    width: int,
    digits: NDArray[np.int8],
    lanes: Words,
    spread: int,
    ones: Words,
    largest: int,
    most: int,
    divisors: Doubles,
    rate: float,
) -> None:
    """Apply x <- x - fp32(sum / divisors[count] * rate) to blocks [first, last) of a level.

    Where column 12 of `lines` is 0, store the step instead. payloads [members] are addresses. For
    each code, `lanes` has a word with its digits and `ones` a word with its votes, one lane each.
    Row s of `lanes` is shifted left by s. `largest` is the largest digit. It is added to each
    digit, so that no lane is negative. Each value is clamped to +-`most`.
    """
    members = len(payloads)
    lane = np.uint64(64 // together)
    room = (1 << (64 // together)) - 1
    longest = 0
    for part in range(len(lines)):
        longest = max(longest, lines[part, 6] * lines[part, 7])
    words = np.empty((longest // together // _TOGETHER + 3) * _TOGETHER, np.uint64)
    sums = np.empty(longest + 2 * together * _TOGETHER, np.float64)
    counts = np.zeros(len(sums), np.int64)
    whole = np.empty(len(sums), np.int64)
    steps = np.empty(len(sums), np.float32)
    active = np.empty(members, np.int64)
    shifts = np.empty(members, np.int64)
    alike = True
    for count in range(2, len(divisors)):
        alike &= divisors[count] == divisors[1]
    for block in range(first, last):
        line = lines[part_of[block]]
        size = line[6] * line[7]
        start = line[11] + (block - line[10]) * size
        low = start // together
        codes = (start + size - 1) // together + 1 - low
        lead = start - low * together
        bit = low * width
        byte = digits_at + (bit >> 3)
        first_bit = bit & 7
        voted = 0
        for member in range(members):
            exponent = _exponent(payloads[member], block)
            if exponent > 0:
                active[voted] = payloads[member] + byte
                shifts[voted] = exponent - 1
                voted += 1
        lowest = 0
        if voted > 0:
            lowest = shifts[0]
        highest = lowest
        for member in range(1, voted):
            lowest = min(lowest, shifts[member])
            highest = max(highest, shifts[member])
        total = 0
        if highest - lowest < spread:
            for member in range(voted):
                total += 2 * largest << (shifts[member] - lowest)
        if highest - lowest < spread and total <= room and largest << highest <= most:
            for member in range(voted):
                shifts[member] = (shifts[member] - lowest) << width
            _add(active, shifts, voted, lanes, codes, first_bit, width, words)
            if alike and together == 3:
                # a power of two commutes with every rounding
                _three(words, codes, total // 2, divisors[1], rate * 2.0**lowest, steps)
                _move(line, block - line[10], steps[lead:])
                continue
            _spread(words, codes, together, lane, total // 2, 2.0**lowest, sums)
        else:
            _add_clamped(
                active, shifts, voted, digits, codes, first_bit, width, largest, most, whole, sums
            )
        if not alike:
            shifts[:voted] = 0
            _add(active, shifts, voted, ones, codes, first_bit, width, words)
            _count(words, codes, together, lane, counts)
        if alike:
            divisor = divisors[1]
            for i in range(size):
                steps[i] = sums[lead + i] / divisor * rate
        else:
            for i in range(size):
                count = counts[lead + i]
                divisor = divisors[count] if count > 0 else 1.0
                steps[i] = sums[lead + i] / divisor * rate
        _move(line, block - line[10], steps)


@kernel()
def _add(
    active: Numbers,
    rows: Numbers,
    members: int,
    lanes: Words,
    codes: int,
    first_bit: int,
    width: int,
    words: Words,
) -> None:
    """Set words [codes] to the sums of all members' lanes, eight codes at a time.

    rows [members] is where each member's row of `lanes` begins.
    """
    mask = np.uint64((1 << width) - 1)
    shift = np.uint64(first_bit)
    by = np.uint64(width)
    for group in range((codes + _TOGETHER - 1) // _TOGETHER):
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = np.uint64(0)
        for member in range(members):
            word = word_at(active[member] + group * width) >> shift
            own = np.uint64(rows[member])
            s0 += lanes[own + (word & mask)]
            word >>= by
            s1 += lanes[own + (word & mask)]
            word >>= by
            s2 += lanes[own + (word & mask)]
            word >>= by
            s3 += lanes[own + (word & mask)]
            word >>= by
            s4 += lanes[own + (word & mask)]
            word >>= by
            s5 += lanes[own + (word & mask)]
            word >>= by
            s6 += lanes[own + (word & mask)]
            word >>= by
            s7 += lanes[own + (word & mask)]
        at = group * _TOGETHER
        words[at] = s0
        words[at + 1] = s1
        words[at + 2] = s2
        words[at + 3] = s3
        words[at + 4] = s4
        words[at + 5] = s5
        words[at + 6] = s6
        words[at + 7] = s7


@kernel()
def _spread(
    words: Words, codes: int, together: int, lane: Any, bias: int, scale: float, sums: Doubles
) -> None:
    """Set sums [codes * together] to the lanes minus the bias, times the scale."""
    mask = (np.uint64(1) << lane) - np.uint64(1)
    for code in range(codes):
        word = words[code]
        for place in range(together):
            sums[code * together + place] = (np.int64(word & mask) - bias) * scale
            word >>= lane


@kernel()
def _three(words: Words, codes: int, bias: int, divisor: float, rate: float, steps: Floats) -> None:
    """Set steps [codes * 3] to the lanes minus the bias, over the divisor, times the rate."""
    mask = np.uint64((1 << 21) - 1)
    lane = np.uint64(21)
    low = np.int32(bias)
    for code in range(codes):
        word = words[code]
        one = np.int32(word & mask) - low
        two = np.int32(word >> lane & mask) - low
        three = np.int32(word >> lane >> lane & mask) - low
        steps[code * 3] = np.float64(one) / divisor * rate
        steps[code * 3 + 1] = np.float64(two) / divisor * rate
        steps[code * 3 + 2] = np.float64(three) / divisor * rate


@kernel()
def _count(words: Words, codes: int, together: int, lane: Any, counts: Numbers) -> None:
    """Set counts [codes * together] to the lanes."""
    mask = (np.uint64(1) << lane) - np.uint64(1)
    for code in range(codes):
        word = words[code]
        for place in range(together):
            counts[code * together + place] = np.int64(word & mask)
            word >>= lane


@kernel()
def _add_clamped(
    active: Numbers,
    shifts: Numbers,
    members: int,
    digits: NDArray[np.int8],
    codes: int,
    first_bit: int,
    width: int,
    largest: int,
    most: int,
    whole: Numbers,
    sums: Doubles,
) -> None:
    """Set sums to the members' values, each clamped to +-`most`, for any shifts."""
    together = digits.shape[1]
    mask = np.uint64((1 << width) - 1)
    whole[: codes * together] = 0
    for member in range(members):
        for code in range(codes):
            bit = first_bit + code * width
            number = word_at(active[member] + (bit >> 3)) >> np.uint64(bit & 7) & mask
            for place in range(together):
                value = np.int64(digits[number, place]) << shifts[member]
                whole[code * together + place] += min(max(value, -most), most)
    for i in range(codes * together):
        sums[i] = whole[i]


@kernel()
def _move(line: Numbers, number: int, steps: Floats) -> None:
    """Subtract the steps of a part's block from its tensor, or store them there."""
    height = line[6]
    width = line[7]
    across = line[8]
    within = number % line[9]
    top = within // across * height
    left = within % across * width
    tall = min(height, line[4] - top)
    wide = min(width, line[5] - left)
    stride = line[3]
    base = line[0] + 4 * (number // line[9] * line[1] + left * stride)
    for y in range(tall):
        own = steps[y * width : y * width + wide]
        place = array_at(base + 4 * (top + y) * line[2], (wide - 1) * stride + 1, np.float32)
        if line[12] == 0:
            for x in range(wide):
                place[x * stride] = own[x]
        elif stride == 1:
            for x in range(wide):
                place[x] -= own[x]
        else:
            for x in range(wide):
                place[x * stride] -= own[x]
