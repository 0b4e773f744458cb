"""What this member has sent, received and paid, as one event."""

from __future__ import annotations

from aftermath.train.context import Context


def report_traffic(context: Context) -> None:
    """Emit the counters so far, of peers and chain."""
    stats, spent = context.transport.stats(), context.chain.spent
    context.events.emit(
        "traffic",
        sent=sum(stats.sent.values()),
        received=sum(stats.received.values()),
        sent_by_kind=dict(stats.sent),
        peers=len(context.transport.reachable()),
        transactions=spent.transactions,
        lamports=spent.lamports,
        push_bytes_max=spent.push_bytes_max,
    )
