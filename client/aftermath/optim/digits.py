"""Digits: the encoding of blocks that keep most of their numbers.

A digit encodes whether a number is kept, and its value: 0, or 1, -1, 3 or -3 times the block's
power of two. Every row of digits has one encoding; other bytes are refused.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Five digits with 3 values have 3^5 = 243 combinations, which take 8 bits. Three digits with 5
# values have 5^3 = 125 combinations, which take 7 bits. Both are within 1% of the entropy. Separate
# bits for index and value would take a quarter more.
PACKED = {1: (5, 8), 2: (3, 7)}  # value bits: (digits per code, bits per code)
WORD = 8
"""Codes per uint64."""

Digits = NDArray[np.int8]
Octets = NDArray[np.uint8]


def fewer(places: int, value_bits: int, bits: int) -> bool:
    """Return whether the digits of `places` numbers take fewer than `bits` bits."""
    together, width = PACKED[value_bits]
    return places * width < bits * together


def size_of(count: int, value_bits: int) -> int:
    """Return the bytes of `count` digits."""
    together, width = PACKED[value_bits]
    return -(-(-(-count // together) * width) // 8)


def to_bytes(digits: Digits, value_bits: int) -> bytes:
    """Encode digits, `size_of` bytes."""
    together, width = PACKED[value_bits]
    numbers = -(-len(digits) // together)
    rows = np.zeros((-(-numbers // WORD) * WORD, together), np.uint8)
    rows.reshape(-1)[: len(digits)] = np.abs(digits) + (digits < 0)
    packed = rows[:, -1].copy()
    for place in range(together - 2, -1, -1):
        packed *= 1 + (1 << value_bits)
        packed += rows[:, place]
    return _bits_of(packed, width).tobytes()[: size_of(len(digits), value_bits)]


def from_bytes(data: Octets, count: int, value_bits: int) -> tuple[Digits, int | None]:
    """Return `count` digits, and the index of the first invalid code's first digit, if any."""
    together, width = PACKED[value_bits]
    known = table(value_bits)
    largest = len(known)
    numbers = _numbers_of(data, width)
    beyond = numbers >= largest
    if beyond.any():
        return np.zeros(count, np.int8), int(beyond.argmax()) * together
    symbols: Digits = known[numbers].reshape(-1)
    rest = np.flatnonzero(symbols[count:])
    return symbols[:count], count + int(rest[0]) if len(rest) else None


def ends_with_zeros(data: bytes | bytearray | memoryview, count: int, value_bits: int) -> bool:
    """Return whether only zeros follow the last of `count` digits, which is at least one."""
    together, width = PACKED[value_bits]
    last = (count - 1) // together  # the code that has the last digit
    rest = int.from_bytes(data[last * width // 8 :], "little") >> last * width % 8
    numbers: int = (1 + (1 << value_bits)) ** (count - last * together)
    return rest < numbers


def _bits_of(numbers: Octets, width: int) -> Octets:
    """Return the bits of codes, one after the other, lowest first. The count is a multiple of 8."""
    if width == 8:
        return numbers
    words = np.zeros(len(numbers) // WORD, np.uint64)
    for place in range(WORD):
        words |= numbers[place::WORD].astype(np.uint64) << np.uint64(width * place)
    return np.ascontiguousarray(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def _numbers_of(data: Octets, width: int) -> Octets:
    """Invert `_bits_of`. Missing bits at the end are 0."""
    if width == 8:
        return data
    count = -(-len(data) // width)
    octets = np.zeros((count, 8), np.uint8)
    octets[: len(data) // width, :width] = data[: len(data) // width * width].reshape(-1, width)
    if rest := len(data) % width:
        octets[-1, :rest] = data[-rest:]
    words = octets.view("<u8")[:, 0]
    numbers = np.empty((count, WORD), np.uint8)
    for place in range(WORD):
        numbers[:, place] = words >> np.uint64(width * place) & np.uint64((1 << width) - 1)
    return numbers.reshape(-1)


@lru_cache(maxsize=2)
def table(value_bits: int) -> Digits:
    """Return the digits of every code: [code, place]."""
    together = PACKED[value_bits][0]
    radix = 1 + (1 << value_bits)
    codes = np.arange(radix**together)[:, None] // radix ** np.arange(together) % radix
    found: Digits = np.array([0, 1, -1, 3, -3], np.int8)[codes]
    found.flags.writeable = False
    return found
