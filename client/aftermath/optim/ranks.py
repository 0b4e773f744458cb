"""The rank of a set of at most k of n places: one integer, and back.

Combinatorial number system: the set p_1 < ... < p_m has the rank N(m) + C(p_1, 1) + ... + C(p_m,
m), where N(m) is the number of smaller sets. Each of the sum(C(n, m), m <= k) sets has its own
rank, without gaps.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aftermath.optim.blocks import UNUSED

# Binomials beyond 2^32 are rounded up to 32 significant bits: W(p, i) = up(W(p - 1, i) + W(p - 1, i
# - 1)). So a table takes 8 bytes for each, and a number takes a few operations on 32-bit limbs. As
# they are rounded up, W(p + 1, i) >= W(p, i) + W(p, i - 1), so W(p_1, 1) + ... + W(p_i, i) < W(p_i
# + 1, i): taking the largest place that fits, from i = m down, finds the set again. Numbers that no
# set has are refused, and set to 0 as soon as that is known: so a borrow in other remainders
# reaches the next limb at most.
#
# Each sum is rounded by less than a factor of 1 + 2^-31. So with n + k < 2^17 all ranks are below
# (1 + 2^-13) times the number of sets. `bits_of` counts that many: one bit more than the least for
# hardly any n and k.
_LIMB = 32  # bits of a limb, and of a weight's significand
_MASK = (1 << _LIMB) - 1
_SLACK_BITS = 13
_SHORT = 62  # bits of the longest numbers handled in one int64
_ONE = 1 << _LIMB | 1 << _LIMB - 1  # as a weight
_FAR = 2 * _LIMB - 2  # the longest shift of an int64

Numbers = NDArray[np.int64]


@lru_cache(maxsize=256)
def bits_of(places: int, most: int) -> int:
    """Return the bits of the rank of a set of at most `most` of `places` places."""
    sets = binomial = 1
    for members in range(1, most + 1):
        binomial = binomial * (places - members + 1) // members
        sets += binomial
    return (sets + (sets >> _SLACK_BITS) - 1).bit_length()


def to_bits(indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]:
    """Return the ranks [blocks, bits], lowest bit first, of sets [blocks, k].

    Each set ascends and ends with UNUSED.
    """
    blocks, most = indices.shape
    table = _weights(places, most)
    bits = bits_of(places, most)
    used = indices != UNUSED
    weights = np.empty((blocks, most + 1), np.int64)
    weights[:, 0] = table[0, used.sum(1)]
    weights[:, 1:] = table[np.arange(1, most + 1), np.where(used, indices, 0)]  # W(0, i) = 0 for unused entries
    limbs = _sums(weights, bits // _LIMB + 2)
    return np.unpackbits(limbs.astype("<u4").view(np.uint8), axis=1, bitorder="little", count=bits)


def from_bits(bits: NDArray[np.uint8], places: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """Return the sets of ranks [blocks, bits], and which numbers [blocks] are no set's rank."""
    table = _weights(places, most)
    rest = _Remainders(bits)
    members = rest.largest(table[0])
    rest.subtract(table[0, members])
    found = np.full((len(bits), most + 1), places)
    short = _short_weights(places, most)
    beyond = np.zeros(len(bits), np.bool_)
    for i in range(most, len(short), -1):
        found[:, i - 1] = place = rest.largest(table[i])
        if (place == places).any() and (new := (place == places) & (members >= i)).any():
            beyond |= new
            rest.forget(new)
            place = np.where(new, 0, place)
        rest.subtract(np.where(members >= i, table[i, place], 0))
    numbers, wrong = rest.short()
    wrong |= beyond
    for i in range(len(short), 0, -1):
        row = short[i - 1]
        found[:, i - 1] = place = np.searchsorted(row, numbers, side="right") - 1
        numbers -= np.where(members >= i, row[place], 0)
    used = np.arange(1, most + 1) <= members[:, None]
    found[:, :-1][~used] = places
    wrong |= (numbers != 0) | (used & (found[:, :-1] >= found[:, 1:])).any(1)
    return np.where(used, found[:, :-1], UNUSED).astype(np.uint16), wrong


class _Remainders:
    """The remainder of one number per block: limbs, lowest first, with a zero limb below them."""

    def __init__(self, bits: NDArray[np.uint8]) -> None:
        packed = np.packbits(bits, axis=1, bitorder="little")
        used = -(-packed.shape[1] * 8 // _LIMB)
        octets = np.zeros((len(bits), used * _LIMB // 8), np.uint8)
        octets[:, : packed.shape[1]] = packed
        limbs = np.zeros((len(bits), 1 + used + 2), np.int64)
        limbs[:, 1 : 1 + used] = octets.view("<u4")
        self._limbs = limbs
        self._flat = limbs.reshape(-1)
        self._first = np.arange(len(bits)) * limbs.shape[1]
        self._top = np.full(len(bits), used)  # all limbs above it are zero

    def largest(self, weights: Numbers) -> Numbers:
        """Return the index of the last of these ascending weights that is not above the number, per
        block.
        """
        at = self._first + self._top
        if not (high := self._flat[at]).all() and (empty := (high == 0) & (self._top > 1)).any():
            self._top -= empty
            if len(rows := np.flatnonzero(empty & (self._flat[at - empty] == 0))):  # skip many zero limbs at once
                used = self._limbs[rows] != 0
                self._top[rows] = np.maximum((used * np.arange(used.shape[1])).max(1), 1)
            at = self._first + self._top
            high = self._flat[at]
        length = np.frexp(high)[1]
        significand = high << (_LIMB - length) | self._flat[at - 1] >> length
        keys = (self._top * _LIMB + (length - _LIMB)) << _LIMB | significand
        found: Numbers = np.searchsorted(weights, keys, side="right") - 1
        return found

    def forget(self, which: NDArray[np.bool_]) -> None:
        """Set these numbers to 0."""
        self._limbs[which] = 0

    def subtract(self, weights: Numbers) -> None:
        """Subtract a weight from each number. No number is below its weight."""
        at, low, high = _limbs_of(weights)
        at += self._first
        borrowed = self._flat[at] - low
        self._flat[at] = borrowed & _MASK
        borrowed = self._flat[at + 1] - high + (borrowed >> _LIMB)
        while True:
            at += 1
            self._flat[at] = borrowed & _MASK
            borrowed >>= _LIMB
            if not borrowed.any():
                return
            borrowed += self._flat[at + 1]

    def short(self) -> tuple[Numbers, NDArray[np.bool_]]:
        """Return the numbers, with 0 for those above 62 bits, and which are above."""
        long = self._limbs[:, 3:].any(1) | (self._limbs[:, 2] >> _SHORT - _LIMB != 0)
        return np.where(long, 0, self._limbs[:, 2] << _LIMB | self._limbs[:, 1]), long


def _sums(weights: Numbers, count: int) -> Numbers:
    """Return the sum of each row of weights as `count` limbs, lowest first."""
    at, low, high = _limbs_of(weights)
    at += (np.arange(len(weights)) * (count + 1))[:, None]
    # Sums of at most 2^16 limbs, which the float64 of bincount holds exactly.
    size = len(weights) * (count + 1)
    sums = np.bincount(at.ravel(), low.ravel(), size) + np.bincount(at.ravel() + 1, high.ravel(), size)
    limbs = sums.astype(np.int64).reshape(len(weights), count + 1)[:, 1:]
    for limb in range(count - 1):
        limbs[:, limb + 1] += limbs[:, limb] >> _LIMB
        limbs[:, limb] &= _MASK
    return limbs


def _limbs_of(weights: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return a weight's lower limb index (counted from one with 32 fraction bits), that limb, and
    the next.
    """
    length = weights >> _LIMB
    shifted = (weights & _MASK) << (length & _LIMB - 1)
    return length // _LIMB, shifted & _MASK, shifted >> _LIMB


def weights(places: int, most: int) -> tuple[Numbers, Numbers]:
    """Return the tables of ranks: `_weights` and `_short_weights`."""
    return _weights(places, most), _short_weights(places, most)


@lru_cache(maxsize=16)
def _weights(places: int, most: int) -> Numbers:
    """Return [i, p]: W(p, i) for i from 1 to `most` and p from 0 to `places`, and [0, m]: N(m).

    A weight is its highest 32 bits, of which the first is 1, and above them its length in bits; or
    0. So weights compare like the numbers.
    """
    columns = np.zeros((places + 1, most + 1), np.int64)
    columns[:, 0] = _ONE
    for place in range(places):
        columns[place + 1, 1:] = _rounded_up(columns[place, 1:], columns[place, :-1])
    rows = np.ascontiguousarray(columns.T)
    fewer = np.full(places + 1, np.iinfo(np.int64).max)
    fewer[0] = 0
    for members in range(most):
        fewer[members + 1] = _rounded_up(fewer[members], rows[members, -1])
    rows[0] = fewer
    rows.flags.writeable = False
    return rows


@lru_cache(maxsize=16)
def _short_weights(places: int, most: int) -> Numbers:
    """Return [i - 1, p]: W(p, i) as plain integers, for the first i whose numbers fit 62 bits."""
    rows = _weights(places, most)[1:]
    long = np.flatnonzero(rows[:, -1] >> _LIMB > _SHORT)
    rows = rows[: long[0]] if len(long) else rows
    length = rows >> _LIMB
    significand = rows & _MASK
    numbers: Numbers = significand << (length - _LIMB).clip(0) >> (_LIMB - length).clip(0)
    numbers.flags.writeable = False
    return numbers


def _rounded_up(one: Numbers, other: Numbers) -> Numbers:
    """Return the sums of weights, rounded up to weights."""
    length = np.maximum(one, other) >> _LIMB
    total = _shifted(one & _MASK, length - (one >> _LIMB)) + _shifted(other & _MASK, length - (other >> _LIMB))
    more = total >> _LIMB
    return (length + more) << _LIMB | _shifted(total, more)


def _shifted(numbers: Numbers, by: Numbers) -> Numbers:
    """Return numbers / 2^by, rounded up."""
    return -(-numbers >> np.minimum(by, _FAR))
