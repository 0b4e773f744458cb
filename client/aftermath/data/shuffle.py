"""A seeded order of sequences: a Feistel permutation, walked until it lands inside the range.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), with BLAKE2b as the round function.

Decided: a round function of half a number's bits has few inputs (the square root of the sequences' number, about), so
what it gave in a pass is remembered, which is most of the work. Beyond _MOST_HALF bits nothing is.
"""

from __future__ import annotations

import hashlib
from array import array
from functools import lru_cache

_ROUNDS = 4
_MOST_HALF = 18  # bits: 8 MiB a pass, and 2^36 sequences
_PASSES = 4  # that are remembered: readers of one source may be in different ones
_UNKNOWN = -1


class Order:
    """The orders of `count` sequences under a seed (at most 64 bytes), another one in every pass."""

    def __init__(self, count: int, seed: bytes) -> None:
        self._count, self._seed = count, seed
        self._half = max(1, ((count - 1).bit_length() + 1) // 2)  # the cipher permutes 2^(2 half) >= count values
        self._mask = (1 << self._half) - 1
        self._known = lru_cache(_PASSES)(self._nothing_known)

    def at(self, place: int, turn: int) -> int:
        """Where `place` of [0, count) goes in pass `turn`: a bijection for every seed and turn."""
        tables = self._known(turn)
        while True:
            left, right = place >> self._half, place & self._mask
            for number, table in enumerate(tables):
                mixed = table[right] if table else _UNKNOWN
                if mixed == _UNKNOWN:
                    mixed = self._mixed(turn, number, right)
                    if table:
                        table[right] = mixed
                left, right = right, left ^ mixed
            place = left << self._half | right
            if place < self._count:
                return place

    def _nothing_known(self, turn: int) -> list[array[int]]:
        return [array("q", [_UNKNOWN]) * (1 << self._half if self._half <= _MOST_HALF else 0) for _ in range(_ROUNDS)]

    def _mixed(self, turn: int, number: int, right: int) -> int:
        message = turn.to_bytes(8, "little") + bytes([number]) + right.to_bytes(8, "little")
        digest = hashlib.blake2b(message, key=self._seed, digest_size=8).digest()
        return int.from_bytes(digest, "little") & self._mask
