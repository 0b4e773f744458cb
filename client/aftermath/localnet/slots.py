"""Slots, blockhashes and block times of the embedded network.

Decided: one slot every `slot_ms`, idle or not. The hash of slot s is SHA-256(genesis hash || s), so nothing about
idle slots has to be stored and recent blockhashes stay valid across a restart. A blockhash is good for 150 slots, as
in agave (MAX_PROCESSING_AGE). The height of a block equals its slot: no slot is skipped.
"""

from __future__ import annotations

import bisect
import hashlib
import struct

from solders.hash import Hash

MAX_PROCESSING_AGE = 150
MAX_SLOT_HASHES = 512
SLOTS_PER_EPOCH = 432_000
SLOT_HASHES_BYTES = 8 + MAX_SLOT_HASHES * 40


class Slots:
    """Where the chain is. An era is a stretch of slots between two starts of the server: (first slot, its unix
    time).
    """

    def __init__(self, genesis: Hash, slot_ms: int, eras: list[tuple[int, float]]) -> None:
        self.genesis = genesis
        self.slot_seconds = slot_ms / 1000
        self._slot_us = slot_ms * 1000
        self.eras = eras
        self.current = eras[-1][0]
        self._ages: dict[Hash, int] = {}
        self._entries: list[bytes] = []
        self._register(max(0, self.current - MAX_SLOT_HASHES), self.current)

    def blockhash(self, slot: int) -> Hash:
        if slot == 0:
            return self.genesis
        return Hash(hashlib.sha256(bytes(self.genesis) + struct.pack("<Q", slot)).digest())

    @property
    def latest(self) -> Hash:
        """The hash of the newest finished slot: what a transaction should be signed with."""
        return self.blockhash(self.current - 1)

    def slot_at(self, now: float) -> int:
        first, start = self.eras[-1]
        return max(self.current, first + round((now - start) * 1e6) // self._slot_us)

    def unix_time(self, slot: int) -> float | None:
        """When `slot` began, or None for a slot before the ledger's first."""
        era = bisect.bisect_right([first for first, _ in self.eras], slot) - 1
        if era < 0:
            return None
        first, start = self.eras[era]
        return start + (slot - first) * self.slot_seconds

    def seconds_to_next(self, now: float) -> float:
        first, start = self.eras[-1]
        return max(0.0, start + (self.current + 1 - first) * self.slot_seconds - now)

    def advance(self, slot: int) -> None:
        self._register(max(self.current, slot - MAX_SLOT_HASHES), slot)
        self.current = slot

    def _register(self, first: int, end: int) -> None:
        for slot in range(first, end):
            value = self.blockhash(slot)
            self._ages[value] = slot
            self._entries.append(struct.pack("<Q", slot) + bytes(value))
        del self._entries[: max(0, len(self._entries) - MAX_SLOT_HASHES)]
        for stale in [value for value, slot in self._ages.items() if end - 1 - slot > MAX_PROCESSING_AGE]:
            del self._ages[stale]

    def is_recent(self, blockhash: Hash) -> bool:
        return blockhash in self._ages

    @property
    def last_valid_height(self) -> int:
        return self.current - 1 + MAX_PROCESSING_AGE

    def slot_hashes_account(self) -> bytes:
        """The data of the SlotHashes sysvar: u64 count, then (u64 slot, hash) newest first, padded as on a
        validator.
        """
        data = struct.pack("<Q", len(self._entries)) + b"".join(reversed(self._entries))
        return data.ljust(SLOT_HASHES_BYTES, b"\0")
