"""Elias-Fano encoding of a set of at most k of n places, always of one size.

A place is low + 2^l high. First come the low bits of each of k entries, 0 for an unused one. Then
the high parts as a bitmap, in which the member of entry s sets bit high + s. With l = 0 that is a
bitmap of the places.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aftermath.optim.blocks import UNUSED


def bits_of(places: int, most: int) -> int:
    """Return the bits of a set of at most `most` of `places` places."""
    return _size(places, most, _low_bits(places, most))


def to_bits(indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]:
    """Return the bits [blocks, bits] of sets [blocks, k], each ascending and then UNUSED."""
    blocks, most = indices.shape
    if most == places and (whole := indices[:, -1] != UNUSED).any():
        bits = np.ones((blocks, places), np.uint8)
        if not whole.all():
            bits[~whole] = to_bits(indices[~whole], places)
        return bits
    low = _low_bits(places, most)
    used = indices != UNUSED
    known = np.where(used, indices, 0).astype(np.int64)
    bits = np.zeros((blocks, _size(places, most, low)), np.uint8)
    bits[:, : most * low] = (known[:, :, None] >> np.arange(low) & 1).reshape(blocks, most * low)
    block, entry = np.nonzero(used)
    bits[block, most * low + (known >> low)[used] + (entry if low else 0)] = 1
    return bits


def from_bits(bits: NDArray[np.uint8], places: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return the sets of [blocks, bits], and which rows [blocks] encode no set."""
    if most == places and (whole := bits.all(1)).any():
        indices = np.tile(np.arange(places, dtype=np.uint16), (len(bits), 1))
        refused = np.zeros(len(bits), np.bool_)
        if not whole.all():
            indices[~whole], refused[~whole] = from_bits(bits[~whole], places, most)
        return indices, refused
    low = _low_bits(places, most)
    lows = bits[:, : most * low].reshape(len(bits), most, low) @ (1 << np.arange(low))
    high = bits[:, most * low :]
    members = high.sum(1, dtype=np.int64)
    wrong = members > most
    block, at = np.nonzero(high & ~wrong[:, None])
    own = np.where(wrong, 0, members)
    entry = np.arange(len(at)) - np.repeat(np.cumsum(own) - own, own)
    found = np.full((len(bits), most), places)
    found[block, entry] = (at - (entry if low else 0)) << low | lows[block, entry]
    used = np.arange(most) < own[:, None]
    wrong |= (used & (found >= places) | ~used & (lows != 0)).any(1)
    wrong |= (used[:, 1:] & (found[:, 1:] <= found[:, :-1])).any(1)
    return np.where(used, found, UNUSED).astype(np.uint16), wrong


@lru_cache(maxsize=256)
def _low_bits(places: int, most: int) -> int:
    return min(range(places.bit_length()), key=lambda low: _size(places, most, low))


def _size(places: int, most: int, low: int) -> int:
    return most * (low + 1) + -(-places >> low) if low else places
