"""The places of a block's kept coefficients, as bits: at most k of n places.

n and k alone decide the encoding and its size. Every set has one encoding, and bits that encode no
set are detected.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermath.optim import elias_fano, ranks

# A set is its rank (`optim.ranks`), in as few bits as an integer can have. Elias-Fano
# (`optim.elias_fano`) replaces it if a rank takes as many bits as there are places (about half of
# them kept), or if its table would exceed 64 MiB (about half kept of 4,096 places or more). It
# takes one bit per place, or at most a quarter more.
_LARGEST_TABLE = 1 << 23  # weights, 8 bytes each
_BATCH = 1 << 12  # blocks per batch, so that their numbers stay in cache


class _Code(Protocol):
    """A module that encodes sets."""

    def bits_of(self, places: int, most: int) -> int: ...

    def to_bits(self, indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]: ...

    def from_bits(
        self, bits: NDArray[np.uint8], places: int, most: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]: ...


@lru_cache(maxsize=256)
def bits_of(places: int, most: int) -> int:
    """Return the bits of a set of at most `most` of `places` places, both from 1 to 65535."""
    return _code(places, most).bits_of(places, most)


def are_ranks(places: int, most: int) -> bool:
    """Return whether such sets are encoded as ranks."""
    return _code(places, most) is ranks


def to_bits(indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]:
    """Return the bits [blocks, bits_of(places, k)], one per byte, of sets [blocks, k].

    Each set ascends and ends with UNUSED.
    """
    code = _code(places, indices.shape[1])
    bits = np.empty((len(indices), bits_of(places, indices.shape[1])), np.uint8)
    for first in range(0, len(indices), _BATCH):
        bits[first : first + _BATCH] = code.to_bits(indices[first : first + _BATCH], places)
    return bits


def from_bits(bits: NDArray[np.uint8], places: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return the sets [blocks, most], and which blocks' bits [blocks] encode no set.

    The set of such a block has no meaning.
    """
    code = _code(places, most)
    indices = np.empty((len(bits), most), np.uint16)
    wrong = np.empty(len(bits), np.bool_)
    for first in range(0, len(bits), _BATCH):
        batch = slice(first, first + _BATCH)
        indices[batch], wrong[batch] = code.from_bits(bits[batch], places, most)
    return indices, wrong


@lru_cache(maxsize=256)
def _code(places: int, most: int) -> _Code:
    if (places + 1) * (most + 1) > _LARGEST_TABLE:
        return elias_fano
    return ranks if ranks.bits_of(places, most) < elias_fano.bits_of(places, most) else elias_fano
