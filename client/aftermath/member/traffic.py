"""One event with the bytes that this member sent and received, and the coordinator's costs."""

from __future__ import annotations

from aftermath.events import event_types
from aftermath.member.ports import Ports


def report_traffic(ports: Ports) -> None:
    """Emit the counters so far."""
    stats = ports.transport.stats()
    ports.events.emit(
        event_types.Traffic(
            sent=sum(stats.sent.values()),
            received=sum(stats.received.values()),
            sent_by_kind={str(kind): sent for kind, sent in stats.sent.items()},
            peers=len(ports.transport.reachable()),
            costs=dict(ports.coordinator.costs()),
        )
    )
