"""What was measured: bytes by kind, events, and each peer's bandwidth, round trip and failures.

Everything that has to guess a time limit or an order of peers asks here, so the guesses follow the measurements.

Decided: callers rotate their holders to spread load, so their order stands except against evidence. Evidence is a
failure (asked last for FAILURE_S), several in a row (not asked at all while others are left) and a measured bandwidth
at which this blob would take noticeably longer than from the fastest. A holder not measured for STALE_S keeps its
place: its turn comes, and then it is measured, or has failed. Not holding a blob is an answer, and no evidence.
Failures say nothing of a process started since: a peer that comes back as another instance starts afresh, but for
lies, and no more often than its failures would pass by themselves.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aftermath.base.rate_limit import Bucket
from aftermath.p2p.limits import REMEMBERED_PEERS, Shared
from aftermath.p2p.transport import KINDS, Kind, PeerStats, TransportStats

PATIENCE_S = 5.0
"""Least time a silent peer is given before it is given up."""
HEDGE_S = 1.0
"""Least time for a silent peer before another one is asked as well."""
LONGEST_PATIENCE_S = 20.0
"""Most time, whatever round trips are measured: a peer can make its own as long as it likes."""
PATIENCE_ROUND_TRIPS = 20
SMOOTHING = 0.3
MIN_SAMPLE = 65536
NOTICEABLE_S = 0.5
STALE_S = 60.0
FAILURE_S = 30.0
FAILURES_TO_EXCLUDE = 3
BLAMED_S = 600.0


@dataclass
class PeerPace:
    """Measurements of one peer."""

    bandwidth: float | None = None
    measured_at: float = float("-inf")
    rtt: float | None = None
    failures: int = 0
    last_until: float = float("-inf")
    failing_until: float = float("-inf")
    blamed_until: float = float("-inf")
    instance: bytes | None = None
    returned_at: float = float("-inf")

    @property
    def excluded_until(self) -> float:
        """When it is asked again although others are left."""
        return max(self.failing_until, self.blamed_until)

    def forgive(self) -> None:
        """Forget its failures; lies are not forgotten."""
        self.failures, self.last_until, self.failing_until = 0, float("-inf"), float("-inf")


@dataclass
class Pace:
    """All measurements of a transport. `clock` returns seconds and never goes back."""

    clock: Callable[[], float]
    sent: Counter[Kind] = field(default_factory=Counter)
    received: Counter[Kind] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    peers: dict[bytes, PeerPace] = field(default_factory=dict)

    def peer(self, node_id: bytes) -> PeerPace:
        """The measurements of one peer, empty at first."""
        found = self.peers.pop(node_id) if node_id in self.peers else PeerPace()
        self.peers[node_id] = found
        if len(self.peers) > REMEMBERED_PEERS:
            del self.peers[next(iter(self.peers))]
        return found

    async def throttle(self, bucket: Bucket, shared: Shared | None = None) -> bool:
        """Take a token, waiting until it is paid for, and then a turn in what all peers share; whether it had one."""
        wait = bucket.take()
        if wait:
            self.events["throttled"] += 1
            await asyncio.sleep(wait)
        if shared is not None and await shared.turn(bucket.left):
            self.events["throttled"] += not wait
        return not wait

    def patience(self, node_id: bytes) -> float:
        """Seconds without progress after which this peer is given up."""
        return min(max(PATIENCE_S, self._round_trips(node_id)), LONGEST_PATIENCE_S)

    def hedge(self, node_id: bytes) -> float:
        """Return the seconds of silence after which another peer is asked as well."""
        return min(max(HEDGE_S, self._round_trips(node_id)), PATIENCE_S)

    def _round_trips(self, node_id: bytes) -> float:
        return PATIENCE_ROUND_TRIPS * (self.peer(node_id).rtt or 0.0)

    def delivered(self, node_id: bytes, count: int, seconds: float) -> None:
        """Note that a peer delivered `count` bytes of a blob in `seconds`."""
        pace = self.peer(node_id)
        pace.forgive()
        if count < MIN_SAMPLE or seconds <= 0:
            return
        measured = count / seconds
        pace.bandwidth = (
            measured if pace.bandwidth is None else pace.bandwidth + SMOOTHING * (measured - pace.bandwidth)
        )
        pace.measured_at = self.clock()

    def late(self, node_id: bytes) -> None:
        """Note that a peer lets us wait; it is asked last for a while, unless it delivers after all."""
        self.peer(node_id).last_until = self.clock() + FAILURE_S

    def failed(self, node_id: bytes) -> None:
        """Note a failure; the peer is asked last for a while, after several in a row not at all if others are left."""
        self.late(node_id)
        pace = self.peer(node_id)
        pace.failures += 1
        if pace.failures >= FAILURES_TO_EXCLUDE:
            pace.failing_until = self.clock() + FAILURE_S

    def connected(self, node_id: bytes, instance: bytes, rtt: float | None) -> None:
        """Note a new connection to a peer's process; `instance` is what that process calls itself."""
        pace, now = self.peer(node_id), self.clock()
        self.events["connects"] += 1
        pace.rtt = rtt
        if pace.instance not in (None, instance) and now - pace.returned_at >= FAILURE_S:
            pace.returned_at = now
            pace.forgive()
        pace.instance = instance

    def is_blamed(self, node_id: bytes) -> bool:
        """Whether a lie of this peer was proven lately."""
        return self.peer(node_id).blamed_until > self.clock()

    def blamed(self, node_id: bytes) -> None:
        """Note a proven lie; the peer is not asked for long if others are left."""
        pace = self.peer(node_id)
        pace.failures += FAILURES_TO_EXCLUDE
        pace.blamed_until = self.clock() + BLAMED_S

    def ranked(
        self, holders: Iterable[bytes], connected: frozenset[bytes], size: int, *, excluded: bool = False
    ) -> list[bytes]:
        """Holders in the order to ask them for `size` bytes: connected, did not fail lately, not noticeably slower.

        The slower ones follow fastest first; among equals the order of `holders` stands. Excluded ones are left out
        as long as others remain, unless they are asked for.
        """
        now = self.clock()
        unique = list(dict.fromkeys(holders))
        usable = [one for one in unique if excluded or self.peer(one).excluded_until <= now] or unique
        seconds = {one: self._expected(one, size, now) for one in usable}
        quick = NOTICEABLE_S + min((known for known in seconds.values() if known is not None), default=0.0)

        def order(node_id: bytes) -> tuple[bool, bool, float]:
            expected = seconds[node_id] or 0.0
            last = self.peer(node_id).last_until > now
            return node_id not in connected, last, expected if expected > quick else 0.0

        return sorted(usable, key=order)

    def _expected(self, node_id: bytes, size: int, now: float) -> float | None:
        """Seconds in which this peer should deliver `size` bytes; None if not measured lately."""
        pace = self.peer(node_id)
        known = pace.bandwidth is not None and now - pace.measured_at < STALE_S
        return size / pace.bandwidth if known and pace.bandwidth else None

    def snapshot(self, connected: frozenset[bytes], known: Sequence[bytes]) -> TransportStats:
        """The counters as the interface shows them."""
        return TransportStats(
            sent=_by_kind(self.sent),
            received=_by_kind(self.received),
            connects=self.events["connects"],
            refused=self.events["refused"],
            disconnects=self.events["disconnects"],
            dropped=self.events["dropped"],
            duplicates=self.events["duplicates"],
            throttled=self.events["throttled"],
            violations=self.events["violations"],
            retries=self.events["retries"],
            rejected=self.events["rejected"],
            peers={one: _shown(self.peer(one), one in connected) for one in known},
        )


def _by_kind(counter: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: counter.get(kind, 0) for kind in KINDS}


def _shown(pace: PeerPace, connected: bool) -> PeerStats:
    return PeerStats(connected=connected, bandwidth=pace.bandwidth, rtt=pace.rtt, failures=pace.failures)
