"""A set of at most k of n places as one number, its rank, and back.

The combinatorial number system: the set p_1 < ... < p_m has the rank N(m) + C(p_1, 1) + ... + C(p_m, m), where N(m)
is how many sets have fewer members. Each of the sum(C(n, m), m <= k) sets has a rank of its own, and none is left out.

Decided
- Binomials beyond 2^32 are rounded up to 32 significant bits: W(p, i) = up(W(p - 1, i) + W(p - 1, i - 1)). So a table
  takes 8 bytes for each, however long they are, and a number is a few operations on 32-bit limbs. Being rounded up,
  W(p + 1, i) >= W(p, i) + W(p, i - 1), thus W(p_1, 1) + ... + W(p_i, i) < W(p_i + 1, i): taking the largest place that
  fits, from i = m down, finds the set again. Numbers that no set has are refused.
- Each sum is rounded by less than a factor of 1 + 2^-31, so with n + k < 2^17 all ranks are below (1 + 2^-13) times the
  number of sets. `bits_of` counts that many: more than the least number of bits, by one, for hardly any n and k.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from aftermath.optim.blocks import UNUSED

_LIMB = 32  # bits of a limb, and of a weight's significand
_MASK = (1 << _LIMB) - 1
_SLACK_BITS = 13
_FAR = 2 * _LIMB - 2  # the longest shift of an int64

Numbers = NDArray[np.int64]


@lru_cache(maxsize=256)
def bits_of(places: int, most: int) -> int:
    """Bits of the rank of a set of at most `most` of `places` places."""
    sets = binomial = 1
    for members in range(1, most + 1):
        binomial = binomial * (places - members + 1) // members
        sets += binomial
    return (sets + (sets >> _SLACK_BITS) - 1).bit_length()


def to_bits(indices: NDArray[np.uint16], places: int) -> NDArray[np.uint8]:
    """The ranks of sets [blocks, k], each ascending and then UNUSED: [blocks, bits], lowest bit first."""
    blocks, most = indices.shape
    table, bits = _weights(places, most), bits_of(places, most)
    used = indices != UNUSED
    weights = np.empty((blocks, most + 1), np.int64)
    weights[:, 0] = table[0, used.sum(1)]
    weights[:, 1:] = table[np.arange(1, most + 1), np.where(used, indices, 0)]  # W(0, i) = 0 for those unused
    limbs = _sums(weights, bits // _LIMB + 2)
    return np.unpackbits(limbs.astype("<u4").view(np.uint8), axis=1, bitorder="little", count=bits)


def from_bits(bits: NDArray[np.uint8], places: int, most: int) -> tuple[NDArray[np.uint16], NDArray[np.bool_]]:
    """The sets of ranks [blocks, bits], as `to_bits` takes them, and which of the numbers no set has: [blocks]."""
    table, rest = _weights(places, most), _Remainders(bits)
    members = rest.largest(table[0])
    rest.subtract(table[0, members])
    last = np.full(len(bits), places)
    wrong = np.zeros(len(bits), np.bool_)
    indices = np.full((len(bits), most), UNUSED, np.uint16)
    for i in range(most, 0, -1):
        place = rest.largest(table[i])
        own = (members >= i) & ~wrong
        wrong |= own & (place >= last)
        own &= ~wrong
        rest.subtract(np.where(own, table[i, place], 0))
        last = np.where(own, place, last)
        indices[:, i - 1] = np.where(own, place, UNUSED)
    return indices, wrong | (members == 0) & rest.positive()


class _Remainders:
    """What is left of one number for each block."""

    def __init__(self, bits: NDArray[np.uint8]) -> None:
        packed = np.packbits(bits, axis=1, bitorder="little")
        used = -(-packed.shape[1] * 8 // _LIMB)
        octets = np.zeros((len(bits), used * _LIMB // 8), np.uint8)
        octets[:, : packed.shape[1]] = packed
        limbs = np.zeros((len(bits), 1 + used + 2), np.int64)  # a zero below the number, and two above it
        limbs[:, 1 : 1 + used] = octets.view("<u4")
        self._flat = limbs.reshape(-1)
        self._lowest = np.arange(len(bits)) * limbs.shape[1] + 1
        self._top = self._lowest + used - 1  # nothing but zeros above it

    def largest(self, weights: Numbers) -> Numbers:
        """The last of these ascending weights that is not above the number: its index, for each block."""
        flat, lowest = self._flat, self._lowest
        high = flat[self._top]
        while (empty := (high == 0) & (self._top > lowest)).any():
            self._top -= empty
            high = flat[self._top]
        length = np.frexp(high.astype(np.float64))[1]  # its bits: 0 to 32
        above = np.where(self._top == lowest, _LIMB, length)  # bits of `high` that are in the significand
        significand = (high << (_LIMB - above) | flat[self._top - 1] >> above) & _MASK
        exponent = (self._top - lowest) * _LIMB + above - _LIMB
        found: Numbers = np.searchsorted(weights, exponent << _LIMB | significand, side="right") - 1
        return found

    def subtract(self, weights: Numbers) -> None:
        """Take a weight off each number that is not below it, nor so far above that another would have been larger."""
        exponents = weights >> _LIMB
        at = self._lowest + exponents // _LIMB
        shifted = (weights & _MASK) << exponents % _LIMB
        low = self._flat[at] - (shifted & _MASK)
        middle = self._flat[at + 1] - (shifted >> _LIMB) + (low >> _LIMB)
        self._flat[at] = low & _MASK
        self._flat[at + 1] = middle & _MASK
        self._flat[at + 2] += middle >> _LIMB

    def positive(self) -> NDArray[np.bool_]:
        """Which numbers are not zero."""
        found: NDArray[np.bool_] = np.any(self._flat.reshape(len(self._lowest), -1), axis=1)
        return found


def _sums(weights: Numbers, count: int) -> Numbers:
    """The sum of each row of weights, as `count` limbs, the lowest first."""
    exponents = weights >> _LIMB
    shifted = (weights & _MASK) << exponents % _LIMB
    at = (np.arange(len(weights))[:, None] * count + exponents // _LIMB).ravel()
    # Sums of at most 2^16 limbs, which the float64 of bincount holds exactly.
    low = np.bincount(at, (shifted & _MASK).ravel(), len(weights) * count)
    high = np.bincount(at + 1, (shifted >> _LIMB).ravel(), len(weights) * count)
    limbs = (low + high).astype(np.int64).reshape(len(weights), count)
    for limb in range(count - 1):
        limbs[:, limb + 1] += limbs[:, limb] >> _LIMB
        limbs[:, limb] &= _MASK
    return limbs


@lru_cache(maxsize=16)
def _weights(places: int, most: int) -> Numbers:
    """[i, p]: W(p, i) for i from 1 to `most` and p from 0 to `places`; [0, m]: N(m) for m from 0 to `most`.

    A weight is significand + 2^32 exponent, of which the exponent is the least: so they compare as the numbers do.
    """
    columns = np.zeros((places + 1, most + 1), np.int64)
    columns[:, 0] = 1
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


def _rounded_up(one: Numbers, other: Numbers) -> Numbers:
    """The sums of weights, as weights that are not below them."""
    exponent = np.maximum(one, other) >> _LIMB
    total = _shifted(one & _MASK, exponent - (one >> _LIMB)) + _shifted(other & _MASK, exponent - (other >> _LIMB))
    more = total >> _LIMB
    return (exponent + more) << _LIMB | _shifted(total, more)


def _shifted(numbers: Numbers, by: Numbers) -> Numbers:
    """numbers / 2^by, rounded up."""
    return -(-numbers >> np.minimum(by, _FAR))
