"""Bitmaps of member seats: a Python `int` in memory, 32 little-endian bytes on chain.

Bit `i` (byte `i // 8`, bit `i % 8` on chain) stands for member seat `i`. Set operations on an `int`
are `&`, `|` and `& ~`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_MEMBERS = 256
BITMAP_BYTES = MAX_MEMBERS // 8


def from_bytes(data: bytes) -> int:
    """Return the mask in 32 on-chain bytes. Raises ValueError for any other length."""
    if len(data) != BITMAP_BYTES:
        raise ValueError(f"a member bitmap is {BITMAP_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "little")


def to_bytes(mask: int) -> bytes:
    """Return the 32 on-chain bytes of a mask. Raises ValueError for seats above 255."""
    if mask < 0 or mask >> MAX_MEMBERS:
        raise ValueError(f"a member bitmap has bits for seats 0 to {MAX_MEMBERS - 1} only")
    return mask.to_bytes(BITMAP_BYTES, "little")


def from_seats(seats: Iterable[int]) -> int:
    """Return the mask of these seats. Raises ValueError for a seat outside 0..255."""
    mask = 0
    for seat in seats:
        if not 0 <= seat < MAX_MEMBERS:
            raise ValueError(f"member seat {seat} is outside 0 to {MAX_MEMBERS - 1}")
        mask |= 1 << seat
    return mask


def seats(mask: int) -> Iterator[int]:
    """Yield the seats of a mask in ascending order. A seat's position is its *rank*."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def contains(mask: int, seat: int) -> bool:
    """Return whether `seat` is set. A seat outside the bitmap is never set."""
    return seat >= 0 and bool(mask >> seat & 1)
