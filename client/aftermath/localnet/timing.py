"""The time that a local network's slots and its Clock sysvar follow.

The slot depends only on the time source and not on how often a loop ran. So a virtual clock needs
no cooperation from the event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Protocol


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
