"""Test the demo's output: its display, its lines without a terminal, and its last sentences."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aftermath.demo.__main__ import KILL_AT_STEP, Demo
from aftermath.demo.commands import KILLED, TIERS, DemoPaths
from aftermath.demo.outcome import TierOutcome
from aftermath.demo.report import RunCosts, closing, findings
from aftermath.demo.screen import LINE_EVERY, DemoScreen, line, picture
from aftermath.events.reader import EventOrigin, EventRecord
from aftermath.testnet.member_progress import MemberProgress, RunProgress
from events.sample_events import sample_event

TOTAL = 120
REACHED = [
    TierOutcome(54, 0, 3.2, "", (12, 20), 0.44),
    TierOutcome(54, 1, 3.3, "", (9, 11)),
    TierOutcome(54, 2, 3.4, "", (9, 9)),
]


def run_progress_of(steps: int, *, back_at: int | None = None) -> RunProgress:
    """Return a run with this many trained steps.

    From step `back_at` on, the killed member runs again in a second process.
    """
    run_progress = RunProgress([MemberProgress(f"member-{tier}", tier) for tier in TIERS])
    for member in run_progress.members:
        say(run_progress, member, "started")
        say(
            run_progress,
            member,
            "state",
            epoch=0,
            state="WARMUP",
            step=0,
            total_steps=TOTAL,
            since=0,
        )
        say(run_progress, member, "model", source="the checkpoint", step=0)
    for step in range(1, steps + 1):
        for member in run_progress.members:
            if member.tier == TIERS[KILLED] and back_at is not None and step == back_at:
                say(run_progress, member, "started")
                say(run_progress, member, "model", source="peers", step=step - 1)
            train(run_progress, member, step)
    return run_progress


def say(run_progress: RunProgress, member: MemberProgress, kind: str, **fields: Any) -> None:
    about = EventOrigin("demo", f"wallet of {member.name}", member.tier, "0.1.0")
    run_progress._take(
        EventRecord(
            datetime.now(UTC),
            about,
            sample_event(kind, **fields),
            Path(member.name) / "events.jsonl",
        ),
        1.0,
    )


def train(run_progress: RunProgress, member: MemberProgress, step: int) -> None:
    height = (step - 1) % 40
    loss = 6.0 - step / 40 + member.tier / 10
    say(run_progress, member, "round", epoch=0, height=height, step=step, since=step // 2)
    say(
        run_progress,
        member,
        "trained",
        epoch=0,
        height=height,
        step=step,
        loss=loss,
        tokens=100,
        tokens_per_sec=12_345.0,
    )
    hashes = {level: f"{step}-{level}" for level in range(member.tier, len(TIERS))}
    say(run_progress, member, "applied", step=step, hashes=hashes)
    say(
        run_progress,
        member,
        "traffic",
        sent=10_000 * step,
        costs={"transactions": 1, "lamports": 5000, "push_bytes_max": 700},
    )


def drawn(run_progress: RunProgress, width: int, height: int) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        record=True,
    )
    console.print(
        picture(run_progress, "aftermath on embedded", "member-1 was killed", 12.3, width)
    )
    lines = console.export_text().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    return lines


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_demo_screen_before_first_step_is_drawn(size: tuple[int, int]) -> None:
    screen = "\n".join(
        drawn(RunProgress([MemberProgress(f"member-{tier}", tier) for tier in TIERS]), *size)
    )
    for text in (
        "member-0",
        "member-2",
        "starting",
        "no step yet",
        "no loss yet",
        "member-1 was killed",
    ):
        assert text in screen


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
def test_demo_screen_shows_progress_and_labels(size: tuple[int, int]) -> None:
    lines = drawn(run_progress_of(40), *size)
    assert any("step 39 of 120, 42 s left" in line for line in lines)
    [loss] = [line.strip("│ ") for line in lines if "loss, steps" in line]
    assert loss.startswith("loss, steps 1 to 40:  6.075 █")
    assert loss.endswith("▁ 5.100")
    rows = [line for line in lines if "member-" in line and "12,345" in line]
    assert [row.split()[1] for row in rows] == ["member-0", "member-1", "member-2"]
    for text in ("epoch 0 round", "39: sharing", "5.2000", "400 kB", "checkpoint"):
        assert text in "\n".join(lines)


@pytest.mark.parametrize("terminal", [False, True])
def test_demo_screen_without_terminal_prints_lines(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """Test a pipe and a dumb terminal."""
    monkeypatch.setenv("TERM", "dumb" if terminal else "xterm")
    out = io.StringIO()
    run_progress = RunProgress([MemberProgress("member-0", 0)])
    with DemoScreen(Console(file=out, width=80, force_terminal=terminal), "title") as screen:
        for elapsed in (0.0, 1.0, LINE_EVERY, LINE_EVERY + 1):
            screen.show(run_progress, "nothing happens", elapsed)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert all(
        "no loss yet" in line and "member-0: starting" in line and "nothing happens" in line
        for line in lines
    )


@pytest.mark.parametrize("terminal", [False, True])
def test_demo_screen_prints_each_warning_once(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    run_progress = RunProgress([MemberProgress(f"member-{tier}", tier) for tier in TIERS])
    lost = "9 steps of training are lost: no member has the model, and no checkpoint is recorded"
    with DemoScreen(
        Console(file=out, width=120, height=40, force_terminal=terminal), "title"
    ) as screen:
        screen.show(run_progress, "nothing happens", 1.0)
        for member in run_progress.members:
            say(run_progress, member, "warning", message=lost)
        screen.show(run_progress, "nothing happens", 2.0)
        screen.show(run_progress, "nothing happens", 3.0)
    assert out.getvalue().count(f"warning: member-0: {lost}") == 1
    assert out.getvalue().count(lost) == 1


def test_demo_line_shows_progress() -> None:
    text = line(run_progress_of(40), "all is well", 33.3)
    assert text.startswith(
        "  33.3 s  step 39 of 120, 42 s left  loss 5.100  member-0: epoch 0 round 39: sharing, "
    )
    assert text.endswith("; all is well")


def test_demo_caption_follows_killed_member_until_return() -> None:
    demo = Demo(DemoPaths(Path("nowhere")), "embedded", "llama", "cpu", Console(file=io.StringIO()))
    assert (
        demo.caption(None, False)
        == f"the demo will kill member-1 at step {KILL_AT_STEP} and restart it later"
    )
    assert demo.caption(30.0, False).endswith(
        "(kill -9) at 30 s; the others continue and train its share too"
    )
    assert demo.caption(30.0, True).endswith(
        "it fetches the model from its peers and joins the next epoch"
    )
    demo.run_progress = run_progress_of(90, back_at=81)
    assert demo.caption(30.0, True).endswith("came back, and has trained again since step 81")


def test_closing_states_measurements() -> None:
    run_progress = run_progress_of(TOTAL, back_at=81)
    report = findings(run_progress, RunCosts(391, 1_955_000), REACHED, 75.04)
    sentences = closing(report, DemoPaths(Path("/runs/demo")), run_progress.members[KILLED])
    checks = report["checks_of_replicas"]
    assert checks == 3 * TOTAL
    assert sentences == [
        "3 members trained 120 steps in 75 s. The loss fell from 6.08 to 3.21 nats per byte.",
        "Held-out loss at step 54: tier 0 3.20, tier 1 3.30, tier 2 3.40.",
        "The whole model picks the right one of four continuations in 44% of the cases (25% by chance).",
        f"Replicas are identical: {checks} of {checks} hash checks agree.",
        "member-1 was killed with kill -9. It fetched the model from peers and has trained again since step 81.",
        "On chain: 391 transactions, 1,955,000 lamports in fees (0.001955 SOL).",
        "Files in /runs/demo: demo-report.json, loss.png, checkpoints/, events/, logs/.",
    ]


def test_closing_with_differing_hashes_claims_nothing() -> None:
    run_progress = run_progress_of(TOTAL)
    say(run_progress, run_progress.members[2], "applied", step=7, hashes={2: "another"})
    sentences = closing(
        findings(run_progress, RunCosts(1, 1), REACHED, 1.0),
        DemoPaths(Path("/x")),
        run_progress.members[KILLED],
    )
    assert not any("identical" in sentence or "kill -9" in sentence for sentence in sentences)
