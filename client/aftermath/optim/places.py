"""The places of the coefficients that blocks keep, as bits: at most k of n places in every block.

Decided
- A set is its rank (`optim.ranks`), which takes as few bits as a whole number can. Only where a rank takes no fewer
  bits than there are places (about half of them kept), or where its table would be beyond 64 MiB (about half kept of
  4,096 places, or of more), it is written by Elias-Fano (`optim.elias_fano`): a bit for each place, or a quarter more
  at most.
- n and k alone say which, and how many bits: nothing depends on what is kept.
- Every set has one encoding, and bits that are no set's are told apart.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aftermath.optim import elias_fano, ranks

_LARGEST_TABLE = 1 << 23  # weights of 8 bytes
_BATCH = 1 << 12  # blocks at once, so that their numbers stay in cache


class _Code(Protocol):
    """A module that writes sets."""

    def bits_of(self, places: int, most: int) -> int: ...

    def to_bits(self, indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]: ...

    def from_bits(
        self, bits: NDArray[np.uint8], places: int, most: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]: ...


@lru_cache(maxsize=256)
def bits_of(places: int, most: int) -> int:
    """Bits of a set of at most `most` of `places` places; both are from 1 to 65535, and `most` is not the larger."""
    return _code(places, most).bits_of(places, most)


def are_ranks(places: int, most: int) -> bool:
    """Whether such sets are written as ranks."""
    return _code(places, most) is ranks


def to_bits(indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]:
    """The bits [blocks, bits_of(places, k)], one in a byte, of sets [blocks, k]: each ascends and ends with UNUSED."""
    code = _code(places, indices.shape[1])
    bits = np.empty((len(indices), bits_of(places, indices.shape[1])), np.uint8)
    for first in range(0, len(indices), _BATCH):
        bits[first : first + _BATCH] = code.to_bits(indices[first : first + _BATCH], places)
    return bits


def from_bits(bits: NDArray[np.uint8], places: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """The sets [blocks, most] of such bits, and which blocks' bits are no set's: [blocks], their sets mean nothing."""
    code = _code(places, most)
    indices, wrong = np.empty((len(bits), most), np.uint16), np.empty(len(bits), np.bool_)
    for first in range(0, len(bits), _BATCH):
        batch = slice(first, first + _BATCH)
        indices[batch], wrong[batch] = code.from_bits(bits[batch], places, most)
    return indices, wrong


@lru_cache(maxsize=256)
def _code(places: int, most: int) -> _Code:
    if (places + 1) * (most + 1) > _LARGEST_TABLE:
        return elias_fano
    return ranks if ranks.bits_of(places, most) < elias_fano.bits_of(places, most) else elias_fano
