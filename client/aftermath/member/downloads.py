"""Turns to download: how many results are fetched at once, and whose come next.

An author that stalls holds a turn for the whole of a try, so it gets half of the turns at most, and after a failed try
it waits behind authors that failed less often.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aftermath.p2p.transport import TransportError


class Downloads:
    """The turns of one member."""

    def __init__(self, most: int | None) -> None:
        """`most`: downloads at once; None for no limit."""
        self._most = most
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._running = Counter[bytes]()
        self._failures = Counter[bytes]()
        """Tries in a row that failed, by author."""

    @asynccontextmanager
    async def turn(self, author: bytes) -> AsyncIterator[None]:
        """Wait for a turn to fetch from what `author` announced, and hold it inside the block."""
        if self._most is None:
            yield
            return
        await self._wait(author)
        try:
            yield
            del self._failures[author]
        except TransportError:
            self._failures[author] += 1
            raise
        finally:
            self._end(author)

    async def _wait(self, author: bytes) -> None:
        given = asyncio.get_running_loop().create_future()
        self._waiting.append((author, given))
        self._give()
        try:
            await given
        except asyncio.CancelledError:
            if given.cancelled():
                self._waiting.remove((author, given))
            else:  # it was given in the same moment
                self._end(author)
            raise

    def _end(self, author: bytes) -> None:
        self._running[author] -= 1
        self._give()

    def _give(self) -> None:
        """Give free turns away: to authors that failed less often first, and of these to who has waited longest."""
        assert self._most is not None
        for_one = max(1, self._most // 2)
        while self._running.total() < self._most:
            waiting = [one for one in self._waiting if not one[1].done()]  # else about to be removed
            ready = [one for one in waiting if self._running[one[0]] < for_one]
            if not ready:
                return
            chosen = min(ready, key=lambda one: self._failures[one[0]])
            self._waiting.remove(chosen)
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)
