"""Update the residual and encode every number of each block, in one pass over memory.

Results equal those of `optim.error_feedback` bit by bit, except that torch rounds the scaled
pseudo-gradient before the addition. This does not affect other members.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels.jit import kernel
from aftermath.kernels.sparse_encode import add_gradient, subtract_sent

_TOGETHER = 8  # codes per word: 7 or 8 bytes
_UNUSED = 0xFFFF
_MAGNITUDE = np.uint32(0x7FFFFFFF)

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
Octets = NDArray[np.uint8]
Whole = NDArray[np.int32]


@kernel(
    "void(f4[:,:,::1], i8, i8, f4[::1], i8, i8, i8, i8, f4, f4, i8[:,::1], f4[:,::1], b1, i8, i8,"
    " i8, i8, i8, u1[::1], i8, u1[::1], i8)"
)
def encode(
    blocks: Floats,
    first: int,
    last: int,
    gradient: Floats,
    stride: int,
    rows: int,
    columns: int,
    across: int,
    decay: float,
    factor: float,
    indices: Numbers,
    values: Floats,
    sent: bool,
    smallest: int,
    bits: int,
    fraction: int,
    least: int,
    most: int,
    codes: Octets,
    start: int,
    exponents: Octets,
    number: int,
) -> None:
    """Set residual <- (residual - sent) * decay + factor * gradient, and encode all of it.

    The arguments up to `most` are those of `kernels.sparse_encode.encode`, with topk as large as a
    block. Write each number's digit code to `codes` from `start` on, and each block's exponent code
    to `exponents` from `number` on. Both count from block 0.
    """
    _, height, width = blocks.shape
    size = height * width
    scaled = np.empty(size, np.int32)
    for block in range(first, last):
        own = blocks[block].reshape(size)
        index = indices[block]
        value = values[block]
        full = sent and index[size - 1] == size - 1
        if full:
            for i in range(size):
                own[i] -= value[i]
        elif sent:
            subtract_sent(own, index, value)
        top = block // across * height
        left = block % across * width
        add_gradient(
            blocks[block], gradient, stride, top, left, rows - top, columns - left, decay, factor
        )
        at = start + block * size
        digits = codes[at : at + size]
        one: Any = np.float32(0)
        count = _count(own, smallest)
        exponents[number + block] = 0
        if count > 0:
            exponent = _exponent(own, smallest, count, bits, fraction, least, most, scaled)
            exponents[number + block] = exponent - least + 1
            one = np.float32(math.ldexp(1.0, exponent))
        if count == size:
            if not full:
                for i in range(size):
                    index[i] = i
            _round_all(own, one, bits, digits, value)
        else:
            _round_some(own, smallest, one, bits, digits, index, value)


@kernel()
def _count(own: Floats, smallest: int) -> int:
    """Return how many magnitudes are at least `smallest`, the bit pattern of an fp32."""
    least = np.uint32(smallest)
    words = own.view(np.uint32)
    count = 0
    for i in range(len(words)):
        count += (words[i] & _MAGNITUDE) >= least
    return count


@kernel()
def _exponent(
    own: Floats,
    smallest: int,
    count: int,
    bits: int,
    fraction: int,
    least: int,
    most: int,
    scaled: Whole,
) -> int:
    """Return the best exponent for a block, as `kernels.block_topk.quantise` does.

    `count` magnitudes are at least `smallest`. This overwrites `scaled`.
    """
    bound = np.uint32(smallest)
    words = own.view(np.uint32)
    largest = np.float32(0)
    for i in range(len(own)):
        largest = max(largest, abs(own[i]))
    highest = math.frexp(largest)[1] - 1
    scale = np.float32(math.ldexp(1.0, fraction - highest))
    total: Any = 0
    for i in range(len(own)):
        whole = np.int32(abs(own[i]) * scale)
        whole = whole if (words[i] & _MAGNITUDE) >= bound else np.int32(0)
        scaled[i] = whole
        total += np.int64(whole)
    floor = math.frexp(float(total // count))[1] - 1
    best = most
    lowest = np.iinfo(np.int64).max
    for candidate in range(floor - 2, floor + 3):
        exponent = min(max(candidate + highest - fraction, least), most)
        unit = 1 << min(max(exponent - highest + fraction, 0), fraction + 2)
        error = unit * (unit * count - 2 * total)
        if bits == 2:
            over: Any = 0
            twice = np.int32(2 * unit)
            for i in range(len(scaled)):
                over += np.int64(max(np.int32(scaled[i] - twice), np.int32(0)))
            error -= 4 * unit * over
        if error < lowest:
            best = exponent
            lowest = error
    return best


@kernel()
def _round_all(own: Floats, one: float, bits: int, digits: Octets, value: Floats) -> None:
    """Write the digits and lattice values of a block without zeros."""
    double = np.float32(2 * one) if bits == 2 else np.float32(np.inf)
    triple = np.float32(3 * one)
    for i in range(len(own)):
        number = own[i]
        more = abs(number) > double
        size = triple if more else one
        value[i] = -size if number < 0 else size
        digits[i] = (np.uint8(3) if more else np.uint8(1)) + np.uint8(number < 0)


@kernel()
def _round_some(
    own: Floats,
    smallest: int,
    one: float,
    bits: int,
    digits: Octets,
    index: Numbers,
    value: Floats,
) -> None:
    """Write the digits, indices and lattice values of a block that has zeros."""
    double = np.float32(2 * one) if bits == 2 else np.float32(np.inf)
    bound = np.uint32(smallest)
    words = own.view(np.uint32)
    used = 0
    for i in range(len(own)):
        digits[i] = 0
        if (words[i] & _MAGNITUDE) < bound:
            continue
        more = abs(own[i]) > double
        size = np.float32(3 * one) if more else np.float32(one)
        index[used] = i
        value[used] = math.copysign(size, own[i])
        digits[i] = (3 if more else 1) + (own[i] < 0)
        used += 1
    index[used:] = _UNUSED
    value[used:] = 0


@kernel("void(u1[::1], u1[::1], i8, i8, i8, i8, i8)")
def pack(
    codes: Octets, packed: Octets, first: int, last: int, together: int, width: int, radix: int
) -> None:
    """Write words [first, last) of eight codes of `width` bits, with `together` digits each."""
    for word in range(first, last):
        bits = np.uint64(0)
        at = word * _TOGETHER * together
        for place in range(_TOGETHER):
            number = np.uint64(0)
            for digit in range(together - 1, -1, -1):
                number = number * np.uint64(radix) + np.uint64(codes[at + digit])
            at += together
            bits |= number << np.uint64(width * place)
        for octet in range(width):
            packed[word * width + octet] = bits >> np.uint64(8 * octet) & np.uint64(0xFF)
