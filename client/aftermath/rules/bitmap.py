"""Bitmaps of member slots: a Python `int` in memory, 32 little-endian bytes on chain.

Bit `i` (byte `i // 8`, bit `i % 8` on chain) stands for member slot `i`. An `int` gives set algebra (`&`, `|`, `& ~`)
for free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_MEMBERS = 256
BITMAP_BYTES = MAX_MEMBERS // 8


def from_bytes(data: bytes) -> int:
    """The mask held by 32 on-chain bytes. Raises ValueError on any other length."""
    if len(data) != BITMAP_BYTES:
        raise ValueError(f"a member bitmap is {BITMAP_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "little")


def to_bytes(mask: int) -> bytes:
    """The 32 on-chain bytes of a mask. Raises ValueError when the mask has bits beyond slot 255 or is negative."""
    if mask < 0 or mask >> MAX_MEMBERS:
        raise ValueError(f"a member bitmap has bits for slots 0 to {MAX_MEMBERS - 1} only")
    return mask.to_bytes(BITMAP_BYTES, "little")


def from_slots(slots: Iterable[int]) -> int:
    """The mask with exactly these slots set. Raises ValueError on a slot outside 0..255."""
    mask = 0
    for slot in slots:
        if not 0 <= slot < MAX_MEMBERS:
            raise ValueError(f"member slot {slot} is outside 0 to {MAX_MEMBERS - 1}")
        mask |= 1 << slot
    return mask


def slots(mask: int) -> Iterator[int]:
    """The slots of a mask in ascending order; the position in this order is the slot's *rank*."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def contains(mask: int, slot: int) -> bool:
    """Whether `slot` is set. A slot outside the bitmap is never set."""
    return slot >= 0 and bool(mask >> slot & 1)


def rank(mask: int, slot: int) -> int:
    """How many slots of the mask lie below `slot`: the index of a member within a round's roster."""
    return (mask & ((1 << slot) - 1)).bit_count()
