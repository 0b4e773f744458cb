"""A seeded order of sequences: a Feistel permutation, repeated until the result is inside the
range.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), with BLAKE2b as the
round function.
"""

from __future__ import annotations

import hashlib
from array import array
from functools import lru_cache

_ROUNDS = 4
# A round function has about as many inputs as the square root of the number of sequences.
# Remembering its outputs per pass saves most of the work, up to this many bits.
_MAX_CACHED_BITS = 18  # 8 MiB per pass, for 2^36 sequences
_PASSES = 4  # remembered; readers of one source may be in different passes
_UNKNOWN = -1


class ShuffledOrder:
    """The orders of `count` sequences for a seed of at most 64 bytes, one order per pass."""

    def __init__(self, count: int, seed: bytes) -> None:
        self._count = count
        self._seed = seed
        # the cipher permutes 2^(2 half) >= count values
        self._half = max(1, ((count - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._tables = lru_cache(_PASSES)(self._empty_tables)

    def at(self, position: int, turn: int) -> int:
        """Return the sequence at a position of pass `turn`: a bijection of [0, count)."""
        tables = self._tables(turn)
        while True:
            left = position >> self._half
            right = position & self._mask
            for number, table in enumerate(tables):
                mixed = table[right] if table else _UNKNOWN
                if mixed == _UNKNOWN:
                    mixed = self._mixed(turn, number, right)
                    if table:
                        table[right] = mixed
                left, right = right, left ^ mixed
            position = left << self._half | right
            if position < self._count:
                return position

    def _empty_tables(self, turn: int) -> list[array[int]]:
        return [
            array("q", [_UNKNOWN]) * (1 << self._half if self._half <= _MAX_CACHED_BITS else 0)
            for _ in range(_ROUNDS)
        ]

    def _mixed(self, turn: int, number: int, right: int) -> int:
        message = turn.to_bytes(8, "little") + bytes([number]) + right.to_bytes(8, "little")
        digest = hashlib.blake2b(message, key=self._seed, digest_size=8).digest()
        return int.from_bytes(digest, "little") & self._mask
