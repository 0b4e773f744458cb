"""The strongest numbers of a block, without sorting it, and their values on a lattice.

Decided
- As `optim.transform.strongest` and `optim.lattice.quantise` have it, bit by bit.
- Magnitudes are the bits of an fp32 without its sign: they compare as the numbers do, and whole numbers are fast.
- The block is taken as several columns for each number that is kept. The k-th largest of the columns' maxima is not
  above the k-th largest number, so only columns that reach it are looked at, and hardly more numbers than are kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels.jit import kernel

_UNUSED = 0xFFFF
_COLUMNS = 4  # at least, for each number kept
_FEWEST = 64
_SHORT = 64  # so few are sorted by insertion

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]


@kernel()
def top_k(
    values: Floats, smallest: int, magnitudes: Words, some: Words, places: Numbers, indices: Numbers, found: Floats
) -> int:
    """The numbers of values [n] with the largest magnitudes, as many as `indices` and `found` have entries: how many.

    Indices ascend, and of equals the lower one is kept. `smallest` is the bits of the least fp32 that is no zero; what
    is not needed of them is UNUSED and 0. Uses up magnitudes and places, [n], and some, [2 n].
    """
    n, topk = len(values), len(indices)
    bits = values.view(np.uint32)
    for i in range(n):
        magnitudes[i] = bits[i] & np.uint32(0x7FFFFFFF)
    least: Any = np.uint32(smallest)
    spare, count = n, -1
    if topk < n:
        columns = _FEWEST
        while columns < _COLUMNS * topk:
            columns *= 2
        if columns * _COLUMNS <= n:
            count = _candidates(magnitudes, columns, topk, least, some, places)
        else:
            some[:n] = magnitudes
        many = n if count < 0 else count
        if many >= topk:  # also if just so many are candidates: what is below them is none
            border = _largest(some, many, topk)
            if border >= least:
                least, spare = border, topk
                for p in range(many):
                    spare -= some[p] > border
    used = 0
    ordered = 0 <= count <= _SHORT
    if ordered:
        _sort(places, count)
    for p in range(count if ordered else n):
        i = places[p] if ordered else p
        magnitude = magnitudes[i]
        if magnitude < least:
            continue
        if magnitude == least:
            if spare == 0:
                continue
            spare -= 1
        indices[used] = i
        found[used] = values[i]
        used += 1
    for entry in range(used, topk):
        indices[entry] = _UNUSED
        found[entry] = 0
    return used


@kernel()
def _candidates(magnitudes: Words, columns: int, topk: int, least: Any, some: Words, places: Numbers) -> int:
    """All magnitudes that can be among the `topk` largest, none below `least`: them, their places, how many."""
    n = len(magnitudes)
    maxima, kept = some[n : n + columns], some[n + columns : n + 2 * columns]
    maxima[:] = magnitudes[:columns]
    for first in range(columns, n, columns):
        row = magnitudes[first : first + columns]
        for c in range(len(row)):
            maxima[c] = max(maxima[c], row[c])
    kept[:] = maxima
    limit = max(_largest(kept, columns, topk), least)
    count = 0
    for c in range(columns):
        if maxima[c] < limit:
            continue
        for i in range(c, n, columns):
            if magnitudes[i] >= limit:
                some[count] = magnitudes[i]
                places[count] = i
                count += 1
    return count


@kernel()
def _largest(numbers: Words, count: int, k: int) -> Any:
    """The k-th largest of the first `count`, which change places."""
    low, high, at = 0, count - 1, k - 1
    while low < high:
        one, middle, other = numbers[low], numbers[(low + high) // 2], numbers[high]
        pivot = max(min(one, middle), min(max(one, middle), other))
        i, j = low, high
        while i <= j:
            while numbers[i] > pivot:
                i += 1
            while numbers[j] < pivot:
                j -= 1
            if i <= j:
                numbers[i], numbers[j] = numbers[j], numbers[i]
                i += 1
                j -= 1
        if at <= j:
            high = j
        elif at >= i:
            low = i
        else:
            break
    return numbers[at]


@kernel()
def _sort(numbers: Numbers, count: int) -> None:
    """Put the first `count` in ascending order."""
    for p in range(1, count):
        own = numbers[p]
        q = p
        while q > 0 and numbers[q - 1] > own:
            numbers[q] = numbers[q - 1]
            q -= 1
        numbers[q] = own


@kernel()
def quantise(values: Floats, bits: int, fraction: int, least: int, most: int) -> None:
    """Round values, of which unused ones are 0, to the lattice of 1 or 2 `bits`, exponents from `least` to `most`.

    `fraction` is that of `optim.lattice.fraction_bits`.
    """
    count, largest = 0, np.float32(0)
    for value in values:
        largest = max(largest, abs(value))
        count += value != 0
    if count == 0:
        return
    highest = math.frexp(largest)[1] - 1
    scale = np.float32(math.ldexp(1.0, fraction - highest))
    total: Any = 0
    for value in values:
        total += np.int64(abs(value) * scale)
    floor = math.frexp(float(total // count))[1] - 1
    best, lowest = most, np.iinfo(np.int64).max
    for candidate in range(floor - 2, floor + 3):
        exponent = min(max(candidate + highest - fraction, least), most)
        unit = 1 << min(max(exponent - highest + fraction, 0), fraction + 2)
        error = unit * (unit * count - 2 * total)
        if bits == 2:
            over: Any = 0
            for value in values:
                over += max(np.int64(abs(value) * scale) - 2 * unit, 0)
            error -= 4 * unit * over
        if error < lowest:
            best, lowest = exponent, error
    one = np.float32(math.ldexp(1.0, best))
    for i in range(len(values)):
        size = abs(values[i])
        if size > 0:
            sent = 3 * one if bits == 2 and size > 2 * one else one
            values[i] = math.copysign(sent, values[i])
