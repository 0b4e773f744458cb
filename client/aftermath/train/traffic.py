"""What this member has sent and received, and what the coordinator has cost it, as one event."""

from __future__ import annotations

from aftermath.train.context import Context
from aftermath.watch import kinds


def report_traffic(context: Context) -> None:
    """Emit the counters so far."""
    stats = context.transport.stats()
    context.events.emit(
        kinds.Traffic(
            sent=sum(stats.sent.values()),
            received=sum(stats.received.values()),
            sent_by_kind={str(kind): sent for kind, sent in stats.sent.items()},
            peers=len(context.transport.reachable()),
            costs=dict(context.coordinator.costs()),
        )
    )
