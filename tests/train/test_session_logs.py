"""Test the event files of a session: their first event, their dates, and the lines about
leaving.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aftermath import __version__
from aftermath.base.errors import Unsuitable
from aftermath.chain.wallet import create_wallet
from aftermath.events.stream import JsonLines
from aftermath.sim.simulation import SimulatedRun, play
from aftermath.train import session
from aftermath.train.settings import TrainSettings
from events.sample_events import sample_event


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_event_file_begins_with_session_and_dates_each_event(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wallet = create_wallet(tmp_path / "wallet.json")
    settings = TrainSettings(
        run_id="demo",
        matformer_tier=2,
        logs="json",
        write_log=tmp_path / "log.jsonl",
        events_dir=tmp_path / "events",
    )
    before = datetime.now(UTC)
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            events = session.events_of(settings, stack)
            session._emit_started(settings, wallet, "wallet", events)
            events.emit(sample_event("trained", step=1, loss=2.0))
    after = datetime.now(UTC)
    files = sorted((tmp_path / "events").iterdir())
    assert len(files) == 2, "one for each process"
    (tmp_path / "printed.jsonl").write_text(capsys.readouterr().out)
    for path in (*files, tmp_path / "log.jsonl", tmp_path / "printed.jsonl"):
        first, *others = lines_of(path)
        about = {
            "kind": "started",
            "run_id": "demo",
            "tier": 2,
            "wallet": str(wallet.pubkey),
            "version": __version__,
        }
        assert about.items() <= first.items()
        assert {line["kind"] for line in others} <= {"started", "trained"}
        for line in (first, *others):
            at = datetime.fromisoformat(line["at"])
            assert before - timedelta(seconds=1) <= at <= after + timedelta(seconds=1)
            assert 0 <= line["t"] < 60


def test_log_with_torn_last_line_continues_on_new_line(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for before, lines in (
        (None, 1),
        (b"", 1),
        (b'{"kind":"left"}\n', 2),
        (b'{"kind":"left"}\n{"at":"x","ki', 3),
    ):
        log.unlink(missing_ok=True)
        if before is not None:
            log.write_bytes(before)
        JsonLines(log, lambda: datetime.now(UTC))(sample_event("started"))
        log_lines = log.read_text().splitlines()
        assert len(log_lines) == lines
        assert json.loads(log_lines[-1])["kind"] == "started"


@pytest.mark.parametrize(
    ("option", "field"), [("--write-log", "write_log"), ("--events-dir", "events_dir")]
)
def test_unwritable_log_error_names_option(tmp_path: Path, option: str, field: str) -> None:
    (tmp_path / "file").touch()
    settings = TrainSettings(run_id="demo", **{field: tmp_path / "file" / "log"})
    with (
        contextlib.ExitStack() as stack,
        pytest.raises(Unsuitable, match=f"^{option}: cannot write {tmp_path}/file"),
    ):
        session.events_of(settings, stack)


@pytest.mark.parametrize("together", [True, False])
def test_error_is_not_logged_if_stderr_is_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    """The process prints the error with its fix on standard error when it ends."""
    log = tmp_path / "log"
    with log.open("w") as out, (log if together else tmp_path / "errors").open("w") as errors:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", errors)
        with contextlib.ExitStack() as stack:
            events = session.events_of(TrainSettings(run_id="demo"), stack)
            events.emit(sample_event("warning", message="slow"))
            events.emit(sample_event("error", message="full"))
    assert [line.split()[1] for line in log.read_text().splitlines()] == ["WARNING", "ERROR"][
        : 2 - together
    ]


@pytest.mark.slow
def test_simulated_member_events_have_no_date(tmp_path: Path) -> None:
    """Only sinks add dates, so a member's events are equal in every run in virtual time."""

    async def scenario(sim: SimulatedRun) -> None:
        for tier in (0, 1, 2):
            sim.add(tier)
        await sim.until_finished()

    runs = []
    for place in (tmp_path / "one", tmp_path / "two"):
        sim = play(place, scenario, total_steps=3, rounds_per_epoch=3)
        assert sim.check() > 0
        # The checkpoint directory differs each time.
        events_by_member = [
            [event for event in sim_member.events if event["kind"] != "checkpoint"]
            for sim_member in sim.sim_members
        ]
        runs.append(
            [[{**event, "checkpoint": None} for event in events] for events in events_by_member]
        )
        assert all(
            "at" not in event for sim_member in sim.sim_members for event in sim_member.events
        )
    assert runs[0] == runs[1]


# --- going


@pytest.mark.parametrize("reachable", [True, False])
def test_leaving_member_reports_whether_run_knows(tmp_path: Path, reachable: bool) -> None:
    messages: list[str] = []

    async def scenario(sim: SimulatedRun) -> None:
        sim_members = [sim.add(tier) for tier in (0, 1, 2)]
        await sim.until_round(2)
        going = sim_members[2]
        assert going.chain is not None
        assert going.member is not None
        await sim._end(going)
        going.chain.down = not reachable
        before = len(going.events)
        await session._leave(going.member, going.member._ports.events, 1.3)
        messages.extend(event.get("message", event["kind"]) for event in going.events[before:])

    play(tmp_path, scenario)
    not_told = "cannot tell the chain that this member leaves; the others will drop it"
    assert messages == (["left"] if reachable else [not_told])


def test_warning_repeats_options_of_running_command(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as stack:
        settings = TrainSettings(run_id="demo", logs="json")
        events = session.events_of(settings, stack, lambda text: f"{text} --rpc here")
        events.emit(sample_event("warning", message="run aftermath-solana tick --run-id demo"))
        events.emit(sample_event("error", message="no"))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["message"] == "run aftermath-solana tick --run-id demo --rpc here"
    assert second["message"] == "no"
