"""Select what to send of each block on a GPU with Triton."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

# Every kernel with these options must round each operation as IEEE requires, so forbid fusing.
EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""The options of every kernel call."""


@triton.jit
def choose(
    coefficients: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    size: tl.tensor,
    smallest: tl.tensor,
    TOPK: tl.constexpr,
    LANES: tl.constexpr,
    BITS: tl.constexpr,
    FRACTION: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """Select as `optim.transform.strongest`, and with BITS round as `optim.lattice.quantise`.

    One program per block. coefficients fp32 [blocks, size]; indices int64 and values fp32
    [blocks, TOPK]. WHOLE keeps all nonzero numbers, for a TOPK of `size`. `smallest` is the bit
    pattern of the smallest nonzero number. LANES is a power of two, at least `size`.
    """
    block = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, LANES)
    numbers = tl.load(coefficients + block * size + lanes, mask=lanes < size, other=0.0)
    magnitudes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    magnitudes = tl.where(magnitudes < smallest, 0, magnitudes)
    kept = magnitudes > 0
    if not WHOLE:
        # Build the threshold bit by bit: the largest value that at least TOPK magnitudes reach.
        # This avoids a sort.
        threshold = 0
        for step in range(31):
            higher = threshold | (1 << (30 - step))
            threshold = tl.where(
                tl.sum((magnitudes >= higher).to(tl.int32), axis=0) >= TOPK, higher, threshold
            )
        above = (magnitudes > threshold).to(tl.int32)
        equal = ((magnitudes == threshold) & (magnitudes > 0)).to(tl.int32)
        spare = TOPK - tl.sum(above, axis=0)
        kept = (above > 0) | ((equal > 0) & (tl.cumsum(equal, axis=0) <= spare))
    entries = block * TOPK + tl.cumsum(kept.to(tl.int32), axis=0) - 1
    sent = numbers
    if BITS > 0:
        sent = _quantised(numbers, magnitudes, kept, BITS, FRACTION, LEAST, MOST)
    tl.store(indices + entries, lanes.to(tl.int64), mask=kept)
    tl.store(values + entries, sent, mask=kept)
    # 65535 marks unused entries, which come last.
    unused = (lanes >= tl.sum(kept.to(tl.int32), axis=0)) & (lanes < TOPK)
    tl.store(indices + block * TOPK + lanes, (lanes * 0 + 65535).to(tl.int64), mask=unused)
    tl.store(values + block * TOPK + lanes, (lanes * 0).to(tl.float32), mask=unused)


@triton.jit
def _quantised(
    numbers: tl.tensor,
    magnitudes: tl.tensor,
    kept: tl.tensor,
    BITS: tl.constexpr,
    FRACTION: tl.constexpr,
    LEAST: tl.constexpr,
    MOST: tl.constexpr,
) -> tl.tensor:
    """Round the kept numbers to the block's lattice.

    Exponents come from the bits, since no kept number is subnormal.
    """
    own = tl.where(kept, magnitudes, 0)
    highest = (tl.max(own, axis=0) >> 23) - 127
    exponents = (own >> 23) - 127
    # The integer part of the magnitude times 2^(FRACTION - highest): its 24 bits, shifted right by
    # at least 2.
    whole = ((own & 0x7FFFFF) | 0x800000).to(tl.int64)
    away = tl.minimum(23 - FRACTION + highest - exponents, 62)
    scaled = tl.where(
        kept, tl.where(away >= 0, whole >> tl.maximum(away, 0), whole << tl.maximum(-away, 0)), 0
    )
    count = tl.sum(kept.to(tl.int64), axis=0)
    total = tl.sum(scaled, axis=0)
    mean = (total // tl.maximum(count, 1)).to(tl.float64).to(tl.int64, bitcast=True)
    floor = tl.where(mean > 0, (mean >> 52).to(tl.int32) - 1023, -1)
    best = floor * 0 + MOST
    lowest = total * 0 + 0x7FFFFFFFFFFFFFFF
    for candidate in range(-2, 3):
        exponent = tl.minimum(tl.maximum(floor + candidate + highest - FRACTION, LEAST), MOST)
        places = tl.minimum(tl.maximum(exponent - highest + FRACTION, 0), FRACTION + 2).to(tl.int64)
        unit = (total * 0 + 1) << places
        error = unit * (unit * count - 2 * total)
        if BITS == 2:
            over = tl.where(kept, tl.maximum(scaled - 2 * unit, 0), 0)
            error -= 4 * unit * tl.sum(over, axis=0)
        best = tl.where(error < lowest, exponent, best)
        lowest = tl.minimum(error, lowest)
    one = ((best + 127) << 23).to(tl.float32, bitcast=True)
    sent = one + numbers * 0.0
    if BITS == 2:
        sent = tl.where(tl.abs(numbers) > 2 * one, 3 * one, sent)
    return tl.where(numbers < 0, -sent, sent)
