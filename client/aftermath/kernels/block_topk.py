"""Select the top-k values of a block without sorting it, and quantise them to the lattice.

Results equal `optim.transform.strongest` and `optim.lattice.quantise` bit by bit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aftermath.kernels.jit import kernel

_UNUSED = 0xFFFF
_COLUMNS = 4  # columns per selected number, at least
_FEWEST = 64
_SHORT = 64  # up to this length insertion sort is fastest

Words = NDArray[np.uint32]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float32]


@kernel()
def top_k(
    values: Floats,
    smallest: int,
    magnitudes: Words,
    some: Words,
    places: Numbers,
    indices: Numbers,
    found: Floats,
) -> int:
    """Select the largest magnitudes of values [n] and return how many were selected.

    Write indices in ascending order; the lower index wins a tie. Fill unused entries with UNUSED
    and 0. `smallest` is the bit pattern of the smallest fp32 that counts as nonzero. Overwrite the
    buffers magnitudes [n], places [n] and some [2 n].
    """
    # Without their signs, fp32 numbers compare like integers, and integer compares are fast.
    n = len(values)
    topk = len(indices)
    bits = values.view(np.uint32)
    for i in range(n):
        magnitudes[i] = bits[i] & np.uint32(0x7FFFFFFF)
    least: Any = np.uint32(smallest)
    spare = n
    count = -1
    if topk < n:
        columns = _FEWEST
        while columns < _COLUMNS * topk:
            columns *= 2
        if columns * _COLUMNS <= n:
            count = _candidates(magnitudes, columns, topk, least, some, places)
        else:
            some[:n] = magnitudes
        many = n if count < 0 else count
        if many >= topk:  # the candidates include the top-k, so search only among them
            border = _largest(some, many, topk)
            if border >= least:
                least = border
                spare = topk
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
def _candidates(
    magnitudes: Words, columns: int, topk: int, least: Any, some: Words, places: Numbers
) -> int:
    """Collect magnitudes that can be in the top-k, with their places, and return the count."""
    # The k-th largest column maximum is at most the k-th largest number, so only columns that
    # reach it can hold candidates. There are hardly more than k.
    n = len(magnitudes)
    maxima = some[n : n + columns]
    kept = some[n + columns : n + 2 * columns]
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
    """Return the k-th largest of the first `count` numbers, and reorder them."""
    low = 0
    high = count - 1
    at = k - 1
    while low < high:
        one = numbers[low]
        middle = numbers[(low + high) // 2]
        other = numbers[high]
        pivot = max(min(one, middle), min(max(one, middle), other))
        i = low
        j = high
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
    """Sort the first `count` numbers in ascending order."""
    for p in range(1, count):
        own = numbers[p]
        q = p
        while q > 0 and numbers[q - 1] > own:
            numbers[q] = numbers[q - 1]
            q -= 1
        numbers[q] = own


@kernel()
def quantise(values: Floats, bits: int, fraction: int, least: int, most: int) -> None:
    """Round values in place to the lattice of 1 or 2 `bits`; unused values are 0 and stay 0.

    Exponents lie in [least, most]. `fraction` comes from `optim.lattice.fraction_bits`.
    """
    count = 0
    largest = np.float32(0)
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
    best = most
    lowest = np.iinfo(np.int64).max
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
            best = exponent
            lowest = error
    one = np.float32(math.ldexp(1.0, best))
    for i in range(len(values)):
        size = abs(values[i])
        if size > 0:
            sent = 3 * one if bits == 2 and size > 2 * one else one
            values[i] = math.copysign(sent, values[i])
