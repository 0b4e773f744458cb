"""Elias-Fano codes of fixed size for the indices of kept coefficients, on any device.

A set has at most `most` of `size` indices. The size of its code depends on these two numbers only,
so the size of a result is known before its first byte arrives. Every set has exactly one code, and
decoding detects bits that are not the code of a set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from aftermath.optim.blocks import UNUSED
from aftermath.optim.index_sizes import bits_of, low_bits_of

_ELEMENTS_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Bits per batch: few enough for a CPU's cache, enough to keep a GPU busy."""


def encode_indices(indices: Tensor, size: int) -> Tensor:
    """Encode sets, integers [blocks, most], as bits uint8 [blocks, bits_of].

    The indices of a set ascend, and UNUSED fills the rest. An index is low + 2^l high. The code has
    the l low bits of every entry (0 for unused entries), then a bitmap in which the index in entry
    s sets bit high + s. With l = 0 the bitmap has one bit per index. Sources: Elias 1974, Fano
    1971.
    """
    most = indices.shape[1]
    return torch.cat(
        [
            _encoded(rows, size)
            for rows in indices.split(_rows_at_once(indices, bits_of(size, most)))
        ]
    )


def decode_indices(bits: Tensor, size: int, most: int) -> tuple[Tensor, Tensor]:
    """Decode bits uint8 [blocks, bits_of] into sets int32 [blocks, most].

    Also return which rows are not valid codes, bool [blocks].
    """
    if not len(bits):
        return bits.new_empty(0, most, dtype=torch.int32), bits.new_empty(0, dtype=torch.bool)
    decoded = [
        _decoded(rows, size, most) for rows in bits.split(_rows_at_once(bits, bits.shape[1]))
    ]
    return torch.cat([indices for indices, _ in decoded]), torch.cat(
        [wrong for _, wrong in decoded]
    )


def compact(values: Tensor, used: Tensor, most: int) -> Tensor:
    """Move the used values of each row to its front: [blocks, n] to [blocks, most], 0 after the
    last.

    Values after the first `most` used ones of a row are dropped.
    """
    rows = _rows_at_once(used, used.shape[1])
    parts = zip(values.split(rows), used.split(rows), strict=True)
    return torch.cat([_compacted(part_values, part_used, most) for part_values, part_used in parts])


def _compacted(values: Tensor, used: Tensor, most: int) -> Tensor:
    entry = used.cumsum(1, dtype=torch.int32) - 1
    place = torch.where(used & (entry < most), entry, most).long()
    compacted = values.new_zeros(len(values), most + 1)
    return compacted.scatter_(1, place, values)[:, :most]


def _encoded(indices: Tensor, size: int) -> Tensor:
    blocks, most = indices.shape
    low = low_bits_of(size, most)
    used = indices != UNUSED
    known = torch.where(used, indices, 0).int()
    low_bits = (
        torch.stack([known >> place & 1 for place in range(low)], 2)
        if low
        else known.new_empty(blocks, most, 0)
    )
    bitmap_bits = bits_of(size, most) - most * low
    bit = known >> low
    if low:
        bit = bit + torch.arange(most, dtype=torch.int32, device=bit.device)
    bit = torch.where(used, bit, bitmap_bits).long()  # unused entries set a bit beyond the bitmap
    bitmap = torch.zeros(blocks, bitmap_bits + 1, dtype=torch.uint8, device=bit.device)
    bitmap.scatter_(1, bit, 1)
    return torch.cat([low_bits.flatten(1).to(torch.uint8), bitmap[:, :bitmap_bits]], 1)


def _decoded(bits: Tensor, size: int, most: int) -> tuple[Tensor, Tensor]:
    blocks = len(bits)
    low = low_bits_of(size, most)
    lows = torch.zeros(blocks, most, dtype=torch.int32, device=bits.device)
    for place in range(low):
        lows |= bits[:, place : most * low : low].int() << place
    bitmap = bits[:, most * low :].bool()
    members = bitmap.sum(1, dtype=torch.int32)
    highs = torch.arange(bitmap.shape[1], dtype=torch.int32, device=bits.device).expand(blocks, -1)
    entries = torch.arange(most, dtype=torch.int32, device=bits.device)
    high = compact(highs, bitmap, most)
    if low:
        high = high - entries
    indices = high << low | lows
    used = entries < members[:, None]
    wrong = members > most
    wrong |= (used & (indices >= size) | ~used & (lows != 0)).any(1)
    wrong |= (used[:, 1:] & (indices[:, 1:] <= indices[:, :-1])).any(1)
    return torch.where(used, indices, UNUSED), wrong


def _rows_at_once(rows: Tensor, width: int) -> int:
    limit = _ELEMENTS_AT_ONCE.get(rows.device.type, _ELEMENTS_AT_ONCE["cpu"])
    return max(1, limit // width)
