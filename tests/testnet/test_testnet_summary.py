"""Test the last line that a local testnet prints."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aftermath.events.reader import EventOrigin, EventRecord
from aftermath.testnet.files import SHIPPED, chosen
from aftermath.testnet.member_progress import MemberProgress, RunProgress
from aftermath.testnet.plan import ClientExtras, LocalTestnetClient, LocalTestnetPlan
from aftermath.testnet.run import Ending, Summary, summary_of
from events.sample_events import sample_event


def summary(**overrides: Any) -> Summary:
    values: dict[str, Any] = {
        "ending": Ending.FINISHED,
        "steps": 5,
        "total_steps": 5,
        "clients": 3,
        "tiers": [0, 1, 2],
        "kills": 1,
        "failed": [],
        "loss_first": 4.9,
        "loss_last": 3.15,
        "comparisons": 20,
        "differing": [],
        "seconds": 135.0,
        "directory": "runs/local-testnet",
    }
    return Summary(**values | overrides)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {},
            "3 clients of tiers 0, 1, 2, 1 kill, loss 4.900 to 3.150, replicas identical in 20 comparisons;",
        ),
        (
            {"clients": 1, "tiers": [0], "kills": 0, "comparisons": 0},
            "1 client of tier 0, 0 kills, loss 4.900 to 3.150, no two replicas to compare;",
        ),
        ({"differing": ["level 1 after step 3"]}, "REPLICAS DIFFER: level 1 after step 3;"),
        ({"comparisons": 0, "differing": ["x"]}, "REPLICAS DIFFER: x;"),
        ({"failed": ["client-2"]}, "ended with an error: client-2;"),
    ],
)
def test_summary_line_counts_members_and_steps(fields: dict[str, Any], says: str) -> None:
    assert says in summary(**fields).line()


def test_summary_ends_with_loss_of_last_step(tmp_path: Path) -> None:
    clients = (LocalTestnetClient(1, 0), LocalTestnetClient(2, 0))
    plan = LocalTestnetPlan(chosen(SHIPPED / "demo"), clients, tmp_path, 0, ClientExtras())
    run_progress = RunProgress([MemberProgress(client.name, client.tier) for client in clients])
    for step, losses in ((1, (5.0, 6.0)), (2, (4.0, 4.0)), (3, (2.5, 3.5))):
        for client, loss in zip(clients, losses, strict=True):
            about = EventOrigin("demo", f"wallet of {client.name}", client.tier, "0.1.0")
            trained = sample_event("trained", step=step, loss=loss, tokens=100)
            path = Path(client.name) / "events.jsonl"
            run_progress._take(EventRecord(datetime.now(UTC), about, trained, path), 1.0)
    summary = summary_of(plan, run_progress, Ending.FINISHED, kills=0, failed=[], seconds=1.0)
    assert (summary.loss_first, summary.loss_last) == (5.5, 3.0)
