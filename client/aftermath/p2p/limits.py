"""What a peer, and all peers together, may make us do in a second.

Decided: a peer's buckets belong to its place and not to a connection, so that a new connection
fills none. Beyond its own, what a peer asks needs a turn in what all of them share: of those that
wait, the peer with most left of its own goes first, so that peers that flood wait for one another,
and who asks little waits for none of them. A peer that continues announcing or connecting beyond
its own breaks the protocol: a member that is out is sooner done without than one whose own words
come late behind its flood.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from aftermath.base.rate_limit import Bucket
from aftermath.rules.bitmap import MAX_MEMBERS

ARRIVALS_RATE, ARRIVALS_BURST = 0.5, 10.0
"""Connections of a peer."""
ASKED_RATE, ASKED_BURST = 100.0, 500.0
"""Streams of requests of a peer, whatever comes on them."""
TOLD_RATE, TOLD_BURST = 20.0, 300.0
"""Announcements of a peer: of an honest one some in a round, and 64 again with each connection."""
EXCESS_RATE, EXCESS_BURST = 0.5, 100.0
"""Announcements and connections of a peer beyond these, until it is kept out: no correct member
comes near.
"""
ALL_ASKED_RATE, ALL_ASKED_BURST = 400.0, 2000.0
ALL_TOLD_RATE, ALL_TOLD_BURST = 500.0, 16384.0
"""At once: what 256 members say again to one that comes back."""
REMEMBERED_PEERS = 2 * MAX_MEMBERS
"""Those that did last whatever is remembered of peers: a run's members, and as many that were
before.
"""

Clock = Callable[[], float]


class Shared:
    """`burst` turns at once and `rate` a second, for all peers."""

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._bucket = Bucket(clock, rate, burst)
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
    """One peer's own: connections, streams of requests, announcements, and how often it may go
    beyond.
    """

    clock: Clock
    arrivals: Bucket = field(init=False)
    asked: Bucket = field(init=False)
    told: Bucket = field(init=False)
    excess: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.arrivals = Bucket(self.clock, ARRIVALS_RATE, ARRIVALS_BURST)
        self.asked = Bucket(self.clock, ASKED_RATE, ASKED_BURST)
        self.told = Bucket(self.clock, TOLD_RATE, TOLD_BURST)
        self.excess = Bucket(self.clock, EXCESS_RATE, EXCESS_BURST)


FIRST_S = 10.0
LONGEST_S = 1800.0


@dataclass
class _Record:
    offences: int
    until: float


class Bars:
    """`clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _Record] = OrderedDict()

    def offended(self, peer: bytes) -> float:
        """Keep this peer out, longer than the last time; returns for how many seconds."""
        now, before = self._clock(), self._known.pop(peer, None)
        again = before is not None and now < before.until + LONGEST_S
        offences = before.offences + 1 if before is not None and again else 1
        seconds = min(LONGEST_S, FIRST_S * 2.0 ** min(offences - 1, 16))
        self._known[peer] = _Record(offences, now + seconds)
        while len(self._known) > REMEMBERED_PEERS:
            self._known.popitem(last=False)
        return seconds

    def left(self, peer: bytes) -> float:
        """Seconds for which this peer is still kept out; 0 if it is not."""
        known = self._known.get(peer)
        return max(0.0, known.until - self._clock()) if known is not None else 0.0
