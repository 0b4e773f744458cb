"""What this member has sent and received, and what the coordinator has cost it, as one event."""

from __future__ import annotations

from aftermath.train.context import Context


def report_traffic(context: Context) -> None:
    """Emit the counters so far."""
    stats = context.transport.stats()
    context.events.emit(
        "traffic",
        sent=sum(stats.sent.values()),
        received=sum(stats.received.values()),
        sent_by_kind=dict(stats.sent),
        peers=len(context.transport.reachable()),
        **context.coordinator.costs(),
    )
