"""Quotas, bans and log limits: bound what one peer and all peers together can cause."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from aftermath.base.rate_limit import TokenBucket
from aftermath.p2p.transport import escaped, short
from aftermath.rules.bitmap import MAX_MEMBERS

CONNECTION_RATE = 0.5
CONNECTION_BURST = 10.0
"""Connections of one peer."""
REQUEST_RATE = 100.0
REQUEST_BURST = 500.0
"""Request streams of one peer."""
ANNOUNCEMENT_RATE = 20.0
ANNOUNCEMENT_BURST = 300.0
"""Announcements of one peer. An honest peer sends a few per round, and 64 after each reconnect."""
EXCESS_RATE = 0.5
EXCESS_BURST = 100.0
"""Announcements and connections above a peer's quota before it is banned."""
ALL_REQUEST_RATE = 400.0
ALL_REQUEST_BURST = 2000.0
ALL_ANNOUNCEMENT_RATE = 500.0
ALL_ANNOUNCEMENT_BURST = 16384.0
"""The burst admits what 256 members repeat to a member that reconnects."""
REMEMBERED_PEERS = 2 * MAX_MEMBERS
"""Peers to remember: a run's members and as many former ones."""

Clock = Callable[[], float]
MOST_LOGGED = 1024


class SharedLimit:
    """A rate limit for all peers together: `burst` turns at once, then `rate` per second.

    The waiting peer with most of its own quota left goes first. So flooding peers wait for each
    other, and a peer with few requests does not wait for them.
    """

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._bucket = TokenBucket(clock, rate, burst)
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._due: asyncio.TimerHandle | None = None

    async def turn(self, quota_left: float) -> bool:
        """Wait for a turn, behind peers with more than `quota_left`. Return whether it had to
        wait.
        """
        if not self._waiting and self._bucket.try_take():
            return False
        entry = (-quota_left, next(self._numbers), asyncio.get_running_loop().create_future())
        heapq.heappush(self._waiting, entry)
        self._await_next()
        try:
            await entry[2]
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                heapq.heapify(self._waiting)
            raise
        return True

    def _await_next(self) -> None:
        if self._due is None and self._waiting:
            self._due = asyncio.get_running_loop().call_later(self._bucket.next_in(), self._grant)

    def _grant(self) -> None:
        """Hand out the turns that are due, each to the first peer in line."""
        self._due = None
        while self._waiting and self._bucket.try_take():
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
        self._await_next()


@dataclass(eq=False)
class Quota:
    """One peer's rate limits, and how often it may exceed them.

    The buckets belong to the peer and not to a connection, so reconnecting does not refill them.
    """

    clock: Clock
    connections: TokenBucket = field(init=False)
    requests: TokenBucket = field(init=False)
    announcements: TokenBucket = field(init=False)
    excess: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.connections = TokenBucket(self.clock, CONNECTION_RATE, CONNECTION_BURST)
        self.requests = TokenBucket(self.clock, REQUEST_RATE, REQUEST_BURST)
        self.announcements = TokenBucket(self.clock, ANNOUNCEMENT_RATE, ANNOUNCEMENT_BURST)
        self.excess = TokenBucket(self.clock, EXCESS_RATE, EXCESS_BURST)


FIRST_S = 10.0
LONGEST_S = 1800.0


@dataclass
class _Record:
    offences: int
    until: float


class Bans:
    """Bans of peers that broke the protocol. `clock` returns monotonic seconds.

    A ban doubles with each offence of a key, and starts over once the key has behaved for as long
    as the longest ban. The record of a key outlives its membership.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._records: OrderedDict[bytes, _Record] = OrderedDict()

    def offended(self, peer: bytes) -> float:
        """Ban this peer, longer than the last time. Return the seconds."""
        now = self._clock()
        record = self._records.pop(peer, None)
        again = record is not None and now < record.until + LONGEST_S
        offences = record.offences + 1 if record is not None and again else 1
        seconds = min(LONGEST_S, FIRST_S * 2.0 ** min(offences - 1, 16))
        self._records[peer] = _Record(offences, now + seconds)
        while len(self._records) > REMEMBERED_PEERS:
            self._records.popitem(last=False)
        return seconds

    def seconds_left(self, peer: bytes) -> float:
        """Return the seconds that this peer is still banned, or 0."""
        record = self._records.get(peer)
        return max(0.0, record.until - self._clock()) if record is not None else 0.0


class LogLimits:
    """Logs a problem that peers can cause at will only once per kind and peer.

    After MOST_LOGGED different entries it logs nothing more.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: set[tuple[str, bytes]] = set()

    def is_new(self, doing: str, peer: bytes) -> bool:
        """Return whether `doing` is logged for the first time for `peer`."""
        if (doing, peer) in self._logged or len(self._logged) >= MOST_LOGGED:
            return False
        self._logged.add((doing, peer))
        return True

    def failure(self, doing: str, peer: bytes, error: Exception) -> None:
        """Log once that `doing` failed for `peer`.

        The error may quote a stranger, so its text is escaped and cut, without a traceback.
        """
        if not self.is_new(doing, peer):
            return
        why = f"{type(error).__name__}: {escaped(str(error))}"
        self._log.warning("%s peer %s failed (logged once): %s", doing, short(peer), why)
