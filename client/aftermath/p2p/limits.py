"""Quotas and bans: what one peer, and all peers together, may make us do in a second."""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from aftermath.base.rate_limit import TokenBucket
from aftermath.rules.bitmap import MAX_MEMBERS

ARRIVALS_RATE = 0.5
ARRIVALS_BURST = 10.0
"""Connections of one peer."""
ASKED_RATE = 100.0
ASKED_BURST = 500.0
"""Request streams of one peer, whatever they carry."""
TOLD_RATE = 20.0
TOLD_BURST = 300.0
"""Announcements of one peer. An honest one sends a few a round, and 64 again per connection."""
EXCESS_RATE = 0.5
EXCESS_BURST = 100.0
"""Announcements and connections of a peer beyond these, until it is kept out: no correct member
comes near.
"""
ALL_ASKED_RATE = 400.0
ALL_ASKED_BURST = 2000.0
ALL_TOLD_RATE = 500.0
ALL_TOLD_BURST = 16384.0
"""The burst admits what 256 members repeat to one that comes back."""
REMEMBERED_PEERS = 2 * MAX_MEMBERS
"""Peers to remember: a run's members and as many former ones."""

Clock = Callable[[], float]


class SharedLimit:
    """`burst` turns at once and `rate` a second, for all peers together.

    Of the waiting peers, the one with most of its own quota left goes first. So flooding peers wait
    for each other, and a peer that asks little waits for none of them.
    """

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._bucket = TokenBucket(clock, rate, burst)
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._due: asyncio.TimerHandle | None = None

    async def turn(self, left: float) -> bool:
        """Wait for a turn, behind those that have more than `left` of their own; False if there was
        one to spare.
        """
        if not self._waiting and self._bucket.spare():
            return False
        entry = (-left, next(self._numbers), asyncio.get_running_loop().create_future())
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
            self._due = asyncio.get_running_loop().call_later(self._bucket.next_in(), self._give)

    def _give(self) -> None:
        """Hand out the turns that are due, each to the first peer in line."""
        self._due = None
        while self._waiting and self._bucket.spare():
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(None)
        self._await_next()


@dataclass(eq=False)
class Quota:
    """One peer's limits: connections, request streams, announcements, and how often it may exceed
    them.

    The buckets belong to the peer and not to a connection, so that reconnecting fills none.
    """

    clock: Clock
    arrivals: TokenBucket = field(init=False)
    asked: TokenBucket = field(init=False)
    told: TokenBucket = field(init=False)
    excess: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.arrivals = TokenBucket(self.clock, ARRIVALS_RATE, ARRIVALS_BURST)
        self.asked = TokenBucket(self.clock, ASKED_RATE, ASKED_BURST)
        self.told = TokenBucket(self.clock, TOLD_RATE, TOLD_BURST)
        self.excess = TokenBucket(self.clock, EXCESS_RATE, EXCESS_BURST)


FIRST_S = 10.0
LONGEST_S = 1800.0


@dataclass
class _Record:
    offences: int
    until: float


class Bans:
    """Bans of peers that sent what no correct member sends. `clock` returns seconds and never goes
    back.

    The time doubles with each offence of a key. It falls back to the first once the key has been
    clean for as long as the longest ban. A key's record outlives its membership.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _Record] = OrderedDict()

    def offended(self, peer: bytes) -> float:
        """Ban this peer, longer than the last time, and return for how many seconds."""
        now = self._clock()
        before = self._known.pop(peer, None)
        again = before is not None and now < before.until + LONGEST_S
        offences = before.offences + 1 if before is not None and again else 1
        seconds = min(LONGEST_S, FIRST_S * 2.0 ** min(offences - 1, 16))
        self._known[peer] = _Record(offences, now + seconds)
        while len(self._known) > REMEMBERED_PEERS:
            self._known.popitem(last=False)
        return seconds

    def left(self, peer: bytes) -> float:
        """Return the seconds that this peer is still banned, or 0."""
        known = self._known.get(peer)
        return max(0.0, known.until - self._clock()) if known is not None else 0.0
