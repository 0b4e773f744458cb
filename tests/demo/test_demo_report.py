"""Test that the report states what happened, and that the exit status says whether the demo
succeeded.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from aftermath.demo.commands import KILLED, TIERS, DemoFailed
from aftermath.demo.outcome import TierOutcome
from aftermath.demo.report import RunCosts, findings, shortcomings
from aftermath.events.event_types import Applied, Event
from aftermath.events.stream import line_of
from aftermath.testnet.member_progress import MemberProgress, RunProgress
from events.sample_events import sample_event

LAST = 60
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def events(
    tier: int, *, loss_falls: float = 2.0, steps: int = LAST, wrong_at: int = 0
) -> list[Event]:
    """Return the events of a member of this tier over `steps` rounds.

    At step `wrong_at` its replica differs.
    """
    lines = [
        sample_event("started", run_id="demo", tier=tier, wallet=f"W{tier}"),
        sample_event("joined", seat=tier),
        sample_event("model", source="the checkpoint"),
    ]
    for step in range(1, steps + 1):
        loss = 5.0 + tier - loss_falls * step / steps
        lines.append(
            sample_event(
                "trained", height=step, step=step, loss=loss, tokens=10, tokens_per_sec=1.0
            )
        )
        hashes = {level: f"{step}-{level}" for level in range(tier, len(TIERS))}
        if step == wrong_at:
            hashes[2] = "another"
        lines.append(sample_event("applied", step=step, hashes=hashes))
    costs = {"transactions": 0, "lamports": 0, "push_bytes_max": 700 + tier}
    lines.append(sample_event("traffic", sent=100 * steps, costs=costs))
    return lines


def progress_of(
    place: Path, written: dict[int, list[Event]], *, returns: bool = True
) -> RunProgress:
    members = [MemberProgress(f"m{tier}", tier) for tier in TIERS]
    run_progress = RunProgress(members)
    for member in members:
        directory = place / member.name
        directory.mkdir()
        lines = written[member.tier] + ([sample_event("model", source="peers")] if returns else [])
        written_then = "".join(line_of(line, NOON) for line in lines)
        (directory / "1.jsonl").write_text(written_then + '{"kind": "torn')
    run_progress.follow(place)
    assert run_progress.read(12.0)
    assert not run_progress.read(13.0)
    return run_progress


def report_of(run_progress: RunProgress) -> dict[str, Any]:
    reached = [
        TierOutcome(LAST, 0, 3.14159, "", (12, 20), 0.44),
        TierOutcome(LAST, 1, 3.2, "", (9, 11)),
        TierOutcome(LAST, 2, 3.3, "", (0, 2)),
    ]
    return findings(run_progress, RunCosts(7, 35_000), reached, 60.04)


def test_demo_report_equals_member_events(tmp_path: Path) -> None:
    run_progress = progress_of(tmp_path, {tier: events(tier) for tier in TIERS})
    report = report_of(run_progress)
    assert report == {
        "rounds": LAST,
        "loss_first": 5.9667,
        "loss_last": 4.15,
        "tiers": [0, 1, 2],
        "loss_last_by_tier": {"0": 3.15, "1": 4.15, "2": 5.15},
        "held_out_by_tier": {"0": 3.1416, "1": 3.2, "2": 3.3},
        "held_out_step": LAST,
        "answered": 0.44,
        "replicas_identical": True,
        "checks_of_replicas": LAST * (1 + 2),  # level 1 has two holders, level 2 three
        "bytes_per_round_per_member": 100,
        "transactions": 7,
        "lamports": 35_000,
        "words_of_samples": {"0": [12, 20], "1": [9, 11], "2": [0, 2]},
        "push_bytes_max": 702,
        "wall_seconds": 60.0,
        "seconds_to_first_loss": 12.0,
    }
    assert shortcomings(run_progress, report) == []


def test_one_differing_replica_fails_demo(tmp_path: Path) -> None:
    run_progress = progress_of(tmp_path, {0: events(0), 1: events(1, wrong_at=7), 2: events(2)})
    report = report_of(run_progress)
    assert report["replicas_identical"] is False
    assert ["level 2 at step 7" in sentence for sentence in shortcomings(run_progress, report)] == [
        True
    ]


def test_uncompared_replicas_are_not_called_identical(tmp_path: Path) -> None:
    silent = [line for line in events(1) if not isinstance(line, Applied)]
    run_progress = progress_of(tmp_path, {0: events(0), 1: silent, 2: silent})
    report = report_of(run_progress)
    assert report["replicas_identical"] is False
    assert "nothing was compared" in shortcomings(run_progress, report)[0]


@pytest.mark.parametrize(
    ("change", "returns", "says"),
    [
        ({"loss_falls": 0.5}, True, "The loss fell"),
        ({"steps": 39}, True, "Only 39 rounds"),
        ({}, False, "did not fetch the model"),
    ],
)
def test_demo_shortcomings_name_broken_promises(
    tmp_path: Path, change: Any, returns: bool, says: str
) -> None:
    run_progress = progress_of(
        tmp_path, {tier: events(tier, **change) for tier in TIERS}, returns=returns
    )
    assert [
        says in sentence for sentence in shortcomings(run_progress, report_of(run_progress))
    ] == [True]
    assert TIERS[KILLED] == run_progress.members[KILLED].tier


def test_demo_report_without_loss_fails(tmp_path: Path) -> None:
    with pytest.raises(DemoFailed, match="no member reported a loss"):
        report_of(progress_of(tmp_path, {tier: events(tier, steps=0) for tier in TIERS}))
