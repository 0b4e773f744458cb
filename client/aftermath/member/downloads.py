"""Limit the results that a member downloads at the same time, fairly between authors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aftermath.p2p.transport import TransportError

_MOST_FAILURES = 16  # bounded, so that an author recovers soon after a long outage


class Downloads:
    """Grants one member's download slots.

    A download from a stalled author occupies its slot until it times out. So each author gets at
    most half of the slots, and authors with more failures wait longer. All authors with failures
    share half of the slots. A success makes up for one failure.
    """

    def __init__(self, most: int | None) -> None:
        """`most`: limit of concurrent downloads. None for no limit."""
        self._most = most
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._running = Counter[bytes]()
        self._failures = Counter[bytes]()
        """Failed tries by author, less one for each success. An author at 0 has no entry."""

    @asynccontextmanager
    async def turn(self, author: bytes) -> AsyncIterator[None]:
        """Wait for a slot to download a result of `author`, and hold it inside the block."""
        if self._most is None:
            yield
            return
        await self._wait(author)
        try:
            yield
            self._failures -= Counter({author: 1})  # drops an author that is at 0
        except TransportError:
            self._failures[author] = min(_MOST_FAILURES, self._failures[author] + 1)
            raise
        finally:
            self._end(author)

    async def _wait(self, author: bytes) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((author, turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((author, turn))
            else:  # the slot was granted at the same moment
                self._end(author)
            raise

    def _end(self, author: bytes) -> None:
        self._running[author] -= 1
        self._grant()

    def _grant(self) -> None:
        """Grant free slots to the authors with the fewest failures, then by waiting time."""
        assert self._most is not None
        half = max(1, self._most // 2)
        while self._running.total() < self._most:
            # A future that is already done was cancelled and will be removed soon.
            waiting = [entry for entry in self._waiting if not entry[1].done()]
            failed = sum(self._running[author] for author in self._failures)
            ready = [
                entry
                for entry in waiting
                if self._running[entry[0]] < half
                and (failed < half or entry[0] not in self._failures)
            ]
            if not ready:
                return
            chosen = min(ready, key=lambda entry: self._failures[entry[0]])
            self._waiting.remove(chosen)
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)
