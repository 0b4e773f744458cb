"""What a transaction changed in an account: nothing of it, its whole bytes, or the ranges that differ.

Decided: an account whose length stays is journalled by ranges, because the program's accounts have tens of kilobytes
of which an attestation changes some hundred bytes. Equal bytes between two ranges are written along when they are
fewer than naming another range costs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from solders.account import Account

Change = bytes | None | list[tuple[int, bytes]]
"""Whole bytes (bincode), None for an account that is gone, or (offset, bytes) ranges over the bytes it had."""

SMALL = 256  # an account up to this many bytes is written whole
RANGE_BYTES = 12  # what naming a range costs at most


def change(old: Account | None, new: Account | None) -> Change:
    """How `old` becomes `new`."""
    if new is None:
        return None
    after = bytes(new)
    if old is None or len(after) <= SMALL:
        return after
    before = bytes(old)
    return after if len(before) != len(after) else _ranges(before, after)


def _ranges(before: bytes, after: bytes) -> Change:
    changed = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8))
    if not len(changed):
        return []
    gaps = np.flatnonzero(np.diff(changed) > RANGE_BYTES)
    starts = [int(changed[0]), *changed[gaps + 1].tolist()]
    ends = [*(changed[gaps] + 1).tolist(), int(changed[-1]) + 1]
    found = [(start, after[start:end]) for start, end in zip(starts, ends, strict=True)]
    return found if sum(len(part) + RANGE_BYTES for _, part in found) < len(after) else after


def apply(accounts: dict[bytes, bytearray], changes: Iterable[tuple[bytes, Change]]) -> None:
    """Bring `accounts` (bincode by key) up to date. Raises ValueError for ranges over bytes that are not there."""
    for key, what in changes:
        if what is None:
            accounts.pop(key, None)
        elif isinstance(what, bytes):
            accounts[key] = bytearray(what)
        else:
            held = accounts.get(key)
            for offset, part in what:
                if held is None or not 0 <= offset <= len(held) - len(part):
                    raise ValueError("a range outside the account")
                held[offset : offset + len(part)] = part
