"""Measurements of traffic, and of each peer's bandwidth, round trip and failures.

Every timeout and every order of peers is derived from these numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aftermath.base.rate_limit import TokenBucket
from aftermath.p2p.limits import REMEMBERED_PEERS, SharedLimit
from aftermath.p2p.transport import KINDS, Kind, PeerStats, TransportStats

PATIENCE_S = 5.0
"""Minimum seconds of silence before giving up on a peer."""
HEDGE_S = 1.0
"""Minimum seconds of silence before asking another peer as well."""
LONGEST_PATIENCE_S = 20.0
"""Maximum patience in seconds: a peer can inflate its own round trip."""
PATIENCE_ROUND_TRIPS = 20
SMOOTHING = 0.3
MIN_SAMPLE = 65536
NOTICEABLE_S = 0.5
STALE_S = 60.0
FAILURE_S = 30.0
FAILURES_TO_EXCLUDE = 3
BLAMED_S = 600.0


@dataclass
class PeerMeasurement:
    """Measurements of one peer. Times are in seconds of `PeerMeasurements.clock`."""

    bandwidth: float | None = None
    """Bytes per second."""
    measured_at: float = float("-inf")
    rtt: float | None = None
    """Round-trip time in seconds."""
    failures: int = 0
    last_until: float = float("-inf")
    failing_until: float = float("-inf")
    blamed_until: float = float("-inf")
    instance: bytes | None = None
    returned_at: float = float("-inf")

    @property
    def excluded_until(self) -> float:
        """Return until when the peer is excluded while others are left."""
        return max(self.failing_until, self.blamed_until)

    def forgive(self) -> None:
        """Forget the peer's failures, but not its lies."""
        self.failures = 0
        self.last_until = float("-inf")
        self.failing_until = float("-inf")


@dataclass
class PeerMeasurements:
    """All measurements of a transport. `clock` returns seconds and never goes back."""

    clock: Callable[[], float]
    sent: Counter[Kind] = field(default_factory=Counter)
    received: Counter[Kind] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    peers: dict[bytes, PeerMeasurement] = field(default_factory=dict)

    def peer(self, node_id: bytes) -> PeerMeasurement:
        """Return the measurements of one peer, empty at first."""
        measurement = self.peers.pop(node_id) if node_id in self.peers else PeerMeasurement()
        self.peers[node_id] = measurement
        if len(self.peers) > REMEMBERED_PEERS:
            del self.peers[next(iter(self.peers))]
        return measurement

    async def throttle(self, bucket: TokenBucket, shared: SharedLimit | None = None) -> bool:
        """Wait for the peer's rate limit and then for a shared turn. Return True if the first had
        room.
        """
        wait = bucket.take()
        if wait:
            self.events["throttled"] += 1
            await asyncio.sleep(wait)
        if shared is not None and await shared.turn(bucket.left):
            self.events["throttled"] += not wait
        return not wait

    def patience(self, node_id: bytes) -> float:
        """Return the seconds without progress after which to give up on this peer."""
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
            measured
            if pace.bandwidth is None
            else pace.bandwidth + SMOOTHING * (measured - pace.bandwidth)
        )
        pace.measured_at = self.clock()

    def late(self, node_id: bytes) -> None:
        """Record that a peer is slow. It is asked last for a while, unless it delivers."""
        self.peer(node_id).last_until = self.clock() + FAILURE_S

    def failed(self, node_id: bytes) -> None:
        """Record a failure. The peer is asked last for a while.

        After several in a row it is excluded while others are left.
        """
        self.late(node_id)
        pace = self.peer(node_id)
        pace.failures += 1
        if pace.failures >= FAILURES_TO_EXCLUDE:
            pace.failing_until = self.clock() + FAILURE_S

    def connected(self, node_id: bytes, instance: bytes, rtt: float | None) -> None:
        """Record a new connection to a peer. `instance` identifies its process."""
        pace = self.peer(node_id)
        now = self.clock()
        self.events["connects"] += 1
        pace.rtt = rtt
        if pace.instance not in (None, instance) and now - pace.returned_at >= FAILURE_S:
            pace.returned_at = now
            pace.forgive()
        pace.instance = instance

    def is_blamed(self, node_id: bytes) -> bool:
        """Return whether a lie of this peer was proven recently."""
        return self.peer(node_id).blamed_until > self.clock()

    def blamed(self, node_id: bytes) -> None:
        """Record proven false data. The peer is excluded for long while others are left."""
        pace = self.peer(node_id)
        pace.failures += FAILURES_TO_EXCLUDE
        pace.blamed_until = self.clock() + BLAMED_S

    def ranked(
        self,
        holders: Iterable[bytes],
        connected: frozenset[bytes],
        size: int,
        *,
        excluded: bool = False,
        author: bytes | None = None,
    ) -> list[bytes]:
        """Return holders in the order to ask them for `size` bytes.

        Callers rotate their holders to spread load, so this keeps their order except for three
        reasons. A holder with a recent failure is asked last for FAILURE_S. A holder with several
        failures in a row is excluded while others are left. A holder with a noticeably slower
        measured bandwidth for this size comes later. Slower holders follow fastest first. A holder
        not measured for STALE_S keeps its position, and so does the blob's author, because slower
        members may have the blob later. A missing blob is not a reason.
        """
        now = self.clock()
        unique = list(dict.fromkeys(holders))
        usable = [
            holder for holder in unique if excluded or self.peer(holder).excluded_until <= now
        ] or unique
        seconds = {holder: self._expected(holder, size, now) for holder in usable}
        quick = NOTICEABLE_S + min(
            (
                expected_seconds
                for expected_seconds in seconds.values()
                if expected_seconds is not None
            ),
            default=0.0,
        )

        def order(node_id: bytes) -> tuple[bool, bool, float]:
            expected = 0.0 if node_id == author else seconds[node_id] or 0.0
            last = self.peer(node_id).last_until > now
            return node_id not in connected, last, expected if expected > quick else 0.0

        return sorted(usable, key=order)

    def _expected(self, node_id: bytes, size: int, now: float) -> float | None:
        """Return the seconds for `size` bytes, or None if not measured recently."""
        pace = self.peer(node_id)
        is_recent = pace.bandwidth is not None and now - pace.measured_at < STALE_S
        return size / pace.bandwidth if is_recent and pace.bandwidth else None

    def snapshot(self, connected: frozenset[bytes], members: Sequence[bytes]) -> TransportStats:
        """Return the counters as the interface shows them."""
        return TransportStats(
            sent=_by_kind(self.sent),
            received=_by_kind(self.received),
            connects=self.events["connects"],
            refused=self.events["refused"],
            disconnects=self.events["disconnects"],
            failed_handshakes=self.events["failed_handshakes"],
            dropped=self.events["dropped"],
            duplicates=self.events["duplicates"],
            throttled=self.events["throttled"],
            violations=self.events["violations"],
            retries=self.events["retries"],
            rejected=self.events["rejected"],
            peers={member: _shown(self.peer(member), member in connected) for member in members},
        )


def _by_kind(counter: Mapping[Kind, int]) -> dict[Kind, int]:
    return {kind: counter.get(kind, 0) for kind in KINDS}


def _shown(pace: PeerMeasurement, connected: bool) -> PeerStats:
    return PeerStats(
        connected=connected, bandwidth=pace.bandwidth, rtt=pace.rtt, failures=pace.failures
    )
