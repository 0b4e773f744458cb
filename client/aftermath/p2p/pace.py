"""What was measured: bytes by kind, events, and each peer's bandwidth, round trip and failures.

Everything that has to guess a time limit or an order of peers asks here, so the guesses follow the measurements.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aftermath.p2p.transport import KINDS, Kind, PeerStats, TransportStats

PATIENCE_S = 5.0
"""Least time a silent peer is given before another is asked."""
PATIENCE_ROUND_TRIPS = 20
SMOOTHING = 0.3
MIN_SAMPLE = 65536
FAILURES_TO_EXCLUDE = 3
EXCLUDED_S = 30.0
BLAMED_S = 600.0


@dataclass
class PeerPace:
    """Measurements of one peer."""

    bandwidth: float | None = None
    rtt: float | None = None
    failures: int = 0
    excluded_until: float = float("-inf")


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
        return self.peers.setdefault(node_id, PeerPace())

    def patience(self, node_id: bytes) -> float:
        """Seconds without progress after which this peer is given up."""
        return max(PATIENCE_S, PATIENCE_ROUND_TRIPS * (self.peer(node_id).rtt or 0.0))

    def delivered(self, node_id: bytes, count: int, seconds: float) -> None:
        """Note that a peer delivered `count` bytes of a blob in `seconds`."""
        pace = self.peer(node_id)
        pace.failures = 0
        if count < MIN_SAMPLE or seconds <= 0:
            return
        measured = count / seconds
        pace.bandwidth = (
            measured if pace.bandwidth is None else pace.bandwidth + SMOOTHING * (measured - pace.bandwidth)
        )

    def failed(self, node_id: bytes) -> None:
        """Note a failure; after several in a row the peer is asked last for a while."""
        pace = self.peer(node_id)
        pace.failures += 1
        if pace.failures >= FAILURES_TO_EXCLUDE:
            pace.excluded_until = self.clock() + EXCLUDED_S

    def blamed(self, node_id: bytes) -> None:
        """Note a proven lie; the peer is asked last for long."""
        pace = self.peer(node_id)
        pace.failures += FAILURES_TO_EXCLUDE
        pace.excluded_until = self.clock() + BLAMED_S

    def ranked(self, holders: Iterable[bytes], connected: frozenset[bytes]) -> list[bytes]:
        """Holders in the order to ask them: not excluded, connected, never measured, fast; the id breaks ties.

        Excluded holders are left out as long as others remain.
        """
        now = self.clock()
        unique = sorted(set(holders))
        usable = [one for one in unique if self.peer(one).excluded_until <= now] or unique

        def order(node_id: bytes) -> tuple[bool, float]:
            bandwidth = self.peer(node_id).bandwidth
            return node_id not in connected, float("-inf") if bandwidth is None else -bandwidth

        return sorted(usable, key=order)

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
