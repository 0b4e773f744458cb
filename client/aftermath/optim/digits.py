"""Blocks that keep most of their numbers: a digit for each, which says whether it is kept and what its value is.

Decided
- A digit is 0 for a number that is not kept, else 1, -1, 3 or -3 times its block's power of two.
- Five digits of three kinds are one of 243 numbers and take 8 bits, three of five kinds one of 125 and 7 bits: within a
  hundredth of the least there can be, where a bit for each place and bits for each value take a quarter more.
- Digits follow each other over all blocks; the last number is filled up with zeros. Every row of digits has one
  encoding: numbers beyond the largest are refused, and so is what is beyond the last digit.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PACKED = {1: (5, 8), 2: (3, 7)}  # digits of a number and its bits, by the bits of a value
_WORD = 8  # numbers that are done in one uint64

Digits = NDArray[np.int8]
Octets = NDArray[np.uint8]


def fewer(places: int, value_bits: int, bits: int) -> bool:
    """Do so many digits take fewer than so many bits?"""
    together, width = PACKED[value_bits]
    return places * width < bits * together


def size_of(count: int, value_bits: int) -> int:
    """Bytes of so many digits."""
    together, width = PACKED[value_bits]
    return -(-(-(-count // together) * width) // 8)


def to_bytes(digits: Digits, value_bits: int) -> bytes:
    """Digits, one after the other, as `size_of` says."""
    together, width = PACKED[value_bits]
    numbers = -(-len(digits) // together)
    rows = np.zeros((-(-numbers // _WORD) * _WORD, together), np.uint8)
    rows.reshape(-1)[: len(digits)] = np.abs(digits) + (digits < 0)
    packed = rows[:, -1].copy()
    for place in range(together - 2, -1, -1):
        packed *= 1 + (1 << value_bits)
        packed += rows[:, place]
    return _bits_of(packed, width).tobytes()[: size_of(len(digits), value_bits)]


def from_bytes(data: Octets, count: int, value_bits: int) -> tuple[Digits, int | None]:
    """So many digits, and the first that is part of a number that no digits have; one beyond them may be it."""
    together, width = PACKED[value_bits]
    known = table(value_bits)
    largest = len(known)
    numbers = _numbers_of(data, width)
    beyond = numbers >= largest
    if beyond.any():
        return np.zeros(count, np.int8), int(beyond.argmax()) * together
    found: Digits = known[numbers].reshape(-1)
    rest = np.flatnonzero(found[count:])
    return found[:count], count + int(rest[0]) if len(rest) else None


def _bits_of(numbers: Octets, width: int) -> Octets:
    """The bits of so many times eight numbers, one after the other, lowest first."""
    if width == 8:
        return numbers
    words = np.zeros(len(numbers) // _WORD, np.uint64)
    for place in range(_WORD):
        words |= numbers[place::_WORD].astype(np.uint64) << np.uint64(width * place)
    return np.ascontiguousarray(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width])


def _numbers_of(data: Octets, width: int) -> Octets:
    """What `_bits_of` was given; what is missing at the end is 0."""
    if width == 8:
        return data
    count = -(-len(data) // width)
    octets = np.zeros((count, 8), np.uint8)
    octets[: len(data) // width, :width] = data[: len(data) // width * width].reshape(-1, width)
    if rest := len(data) % width:
        octets[-1, :rest] = data[-rest:]
    words = octets.view("<u8")[:, 0]
    found = np.empty((count, _WORD), np.uint8)
    for place in range(_WORD):
        found[:, place] = words >> np.uint64(width * place) & np.uint64((1 << width) - 1)
    return found.reshape(-1)


@lru_cache(maxsize=2)
def table(value_bits: int) -> Digits:
    """[number, place]: the digits of every number that there is."""
    together, radix = PACKED[value_bits][0], 1 + (1 << value_bits)
    codes = np.arange(radix**together)[:, None] // radix ** np.arange(together) % radix
    found: Digits = np.array([0, 1, -1, 3, -3], np.int8)[codes]
    found.flags.writeable = False
    return found
