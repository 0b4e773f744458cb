"""A seeded order of sequences that needs no memory: a Feistel permutation, walked until it lands inside the range.

Source: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), with BLAKE2b as the round function.
"""

from __future__ import annotations

import hashlib

_ROUNDS = 4


def shuffled(place: int, count: int, seed: bytes, turn: int) -> int:
    """Where `place` of [0, count) goes in pass `turn` over the data; a bijection for every seed and turn."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)  # the cipher permutes 2^(2 half) >= count values
    while True:
        place = _permute(place, half, seed, turn)
        if place < count:
            return place


def _permute(value: int, half: int, seed: bytes, turn: int) -> int:
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        message = turn.to_bytes(8, "little") + bytes([number]) + right.to_bytes(8, "little")
        mixed = int.from_bytes(hashlib.blake2b(message, key=seed, digest_size=8).digest(), "little")
        left, right = right, left ^ (mixed & mask)
    return left << half | right
