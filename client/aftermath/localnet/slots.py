"""The time source of a local network, and its slots, blockhashes and block times.

One slot lasts `slot_ms`, idle or not, and block height equals the slot. The slot depends only on
the time source. The hash of slot s is SHA-256(genesis hash || s): idle slots take no space, and
recent blockhashes stay valid across a restart. Neither slots nor chain time run backwards.
"""

from __future__ import annotations

import asyncio
import bisect
import hashlib
import heapq
import itertools
import struct
import time
from collections.abc import Callable
from typing import Protocol

from solders.hash import Hash

from aftermath.localnet.records import Era

MAX_PROCESSING_AGE = 150
"""Slots for which a blockhash is valid, as in agave."""
MAX_SLOT_HASHES = 512
SLOTS_PER_EPOCH = 432_000
SLOT_HASHES_BYTES = 8 + MAX_SLOT_HASHES * 40


class TimeSource(Protocol):
    def now(self) -> float:
        """Unix time in seconds; never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Return once `now()` has advanced by at least `seconds`."""


class RealTime:
    """The monotonic clock from the wall clock at the start, which is read once."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        # Later changes of the wall clock do not affect a running network.
        self._origin = wall() - time.monotonic()

    def now(self) -> float:
        return self._origin + time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualTime:
    """Time that moves with `advance` only. Sleepers wake in the order of their deadlines."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), waiter))
        await waiter

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (at least 0) and wake every sleeper that is due."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            waiter = heapq.heappop(self._sleepers)[2]
            if not waiter.done():
                waiter.set_result(None)


class Slots:
    """Where the chain is. `started` is what the time source read when the last of `eras` began."""

    def __init__(self, genesis: Hash, eras: list[Era], started: float) -> None:
        self.genesis = genesis
        self.eras = eras
        self.current = eras[-1].first
        self._first = eras[-1].first
        self._slot_us = eras[-1].slot_ms * 1000
        self._started = started
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
        return max(self.current, self._due(now))

    def behind(self, now: float) -> int:
        """Return by how many slots the time source is behind the chain, or 0."""
        return max(0, self.current - self._due(now))

    def _due(self, now: float) -> int:
        return self._first + round((now - self._started) * 1e6) // self._slot_us

    def unix_time(self, slot: int) -> float | None:
        """When `slot` began, or None for a slot before the ledger's first."""
        return time_of(self.eras, slot)

    def seconds_to_next(self, now: float) -> float:
        return max(
            0.0, self._started + (self.current + 1 - self._first) * self._slot_us / 1e6 - now
        )

    def advance(self, slot: int) -> None:
        self._register(max(self.current, slot - MAX_SLOT_HASHES), slot)
        self.current = slot

    def _register(self, first: int, end: int) -> None:
        for slot in range(first, end):
            value = self.blockhash(slot)
            self._ages[value] = slot
            self._entries.append(struct.pack("<Q", slot) + bytes(value))
        del self._entries[: max(0, len(self._entries) - MAX_SLOT_HASHES)]
        for stale in [
            value for value, slot in self._ages.items() if end - 1 - slot > MAX_PROCESSING_AGE
        ]:
            del self._ages[stale]

    def is_recent(self, blockhash: Hash) -> bool:
        return blockhash in self._ages

    @property
    def last_valid_height(self) -> int:
        return self.current - 1 + MAX_PROCESSING_AGE

    def slot_hashes_account(self) -> bytes:
        """Return the SlotHashes sysvar: u64 count, then (u64 slot, hash) newest first, padded."""
        data = struct.pack("<Q", len(self._entries)) + b"".join(reversed(self._entries))
        return data.ljust(SLOT_HASHES_BYTES, b"\0")


def time_of(eras: list[Era], slot: int) -> float | None:
    """When `slot` began, or None for a slot before the first era."""
    index = bisect.bisect_right([era.first for era in eras], slot) - 1
    if index < 0:
        return None
    era = eras[index]
    return era.time + (slot - era.first) * era.slot_ms / 1000
