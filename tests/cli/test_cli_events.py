"""Tests of `events` and `plot`: show, follow, export and draw members' events."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aftermath.events.event_files import EpochFiles
from aftermath.events.reader import columns
from aftermath.events.stream import Events, JsonLines
from aftermath.lab import lab_events
from cli.cli_runs import CONSOLE, invoke
from events.sample_events import sample_event

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
EVIL = "=1+1\x1b[2J"


class Writer:
    """A member that writes its events with dates that the test chooses."""

    def __init__(self, directory: Path, tier: int, run: tuple[str, int, str] | None = None) -> None:
        self.at = NOON + timedelta(seconds=tier / 10)
        self.events = Events(lambda: 1.0, [EpochFiles(directory, lambda: self.at)])
        self.events.emit(
            sample_event(
                "started", run_id="demo", tier=tier, wallet=f"Wa11et{tier}" * 6, version="0.1.0"
            )
        )
        if run is not None:
            owner, created, identity = run
            self.events.emit(
                sample_event("run_found", owner=owner, created=created, identity=identity)
            )

    def train(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            self.at += timedelta(seconds=1)
            if step % 5 == 1:
                self.events.emit(
                    sample_event(
                        "state", epoch=step // 5, state="WARMUP", step=step - 1, total_steps=20
                    )
                )
            self.events.emit(sample_event("round", epoch=step // 5, step=step))
            self.events.emit(
                sample_event("trained", epoch=step // 5, step=step, loss=5.0 - step / 10, tokens=10)
            )
            self.events.emit(sample_event("fetch_failed", height=step, seat=2, why=EVIL))


@pytest.fixture
def event_directories(tmp_path: Path) -> Path:
    """Return the events of two members, in one directory each."""
    for tier in (0, 1):
        Writer(tmp_path / "events" / f"member-{tier}", tier).train(1, 7)
    return tmp_path / "events"


def test_events_replay_covers_all_events(event_directories: Path) -> None:
    said_ = invoke("events", event_directories)
    assert said_.code == 0
    lines = said_.out.splitlines()
    assert lines[0].startswith(
        "2026-11-21 12:00:00  Wa11et0W tier 0  run demo, tier 0, wallet Wa11et0"
    )
    assert [line.split("  ")[1:3] for line in lines if "loss" in line] == [
        [f"Wa11et{tier}W tier {tier}", f"step {step}"] for step in range(1, 8) for tier in (0, 1)
    ]
    assert "no way" not in said_.out


def test_events_of_chosen_kinds_are_shown(event_directories: Path) -> None:
    outcome = invoke("events", event_directories, "--kind", "fetch_failed")
    assert len(outcome.out.splitlines()) == 14
    assert "fetch_failed: height 1, seat 2, why =1+1�[2J" in outcome.out
    assert "\x1b" not in outcome.out
    refused = invoke("events", event_directories, "--kind", "trained,nonsense", "--json")
    assert "--kind nonsense is not a kind of event" in refused.mistake["error"]
    assert "trained" in refused.mistake["fix"]


def test_events_json_replay_contains_everything(event_directories: Path) -> None:
    lines = [
        json.loads(line) for line in invoke("events", event_directories, "--json").out.splitlines()
    ]
    assert len(lines) == 2 * (1 + 2 + 7 * 3)
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    first = {
        "run": "demo",
        "member": "Wa11et0" * 6,
        "member_tier": 0,
        "client": "0.1.0",
        "kind": "started",
    }
    assert first.items() <= lines[0].items()


def test_events_replay_speed_scales_pauses(
    event_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    assert invoke("events", event_directories, "--speed", "2").code == 0
    # from the first member's first event to the second member's last
    assert sum(slept) == pytest.approx(7.1 / 2)


def test_events_of_missing_or_empty_place_are_refused(
    tmp_path: Path, event_directories: Path
) -> None:
    gone = invoke("events", tmp_path / "nowhere", "--json")
    assert "no such file or directory" in gone.error["error"]
    (tmp_path / "empty").mkdir()
    assert (
        "there are no matching events"
        in invoke("events", tmp_path / "empty", "--json").error["error"]
    )
    assert (
        "there are no matching events"
        in invoke("events", event_directories, "--kind", "ejected", "--json").error["error"]
    )
    assert "no training events" in invoke("plot", tmp_path / "empty", "--json").error["error"]


@pytest.mark.parametrize("command", [("plot",), ("events",)])
@pytest.mark.parametrize("form", ["file", "directory"])
def test_unreadable_events_error_has_fix(
    tmp_path: Path, command: tuple[str, ...], form: str
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    if (
        os.geteuid() == 0
    ):  # root may read any file, but the system refuses to read this one from its beginning
        (events / "a.jsonl").symlink_to("/proc/self/mem")
        fix = "Name another file"
    else:
        (events / "a.jsonl").touch(mode=0)
        fix = f"chmod u+r {events / 'a.jsonl'}"
    failed = invoke(*command, events if form == "directory" else events / "a.jsonl", "--json").error
    assert failed["error"].startswith(f"cannot read {events / 'a.jsonl'}: ")
    assert fix in failed["fix"]
    assert "--events-dir" not in failed["fix"]


def test_events_invalid_lines_are_skipped_with_warning(event_directories: Path) -> None:
    path = sorted(event_directories.rglob("*.jsonl"))[-1]
    with path.open("a") as file:
        file.write('not an event\n{"at":"2026')
    outcome = invoke("events", event_directories)
    assert outcome.code == 0
    assert "skipped the incomplete last line of " in outcome.err
    assert "which this version cannot read" in outcome.err


def test_export_of_file_without_events_is_refused(tmp_path: Path) -> None:
    laboratory = tmp_path / "events.jsonl"
    out = tmp_path / "events.csv"
    laboratory.write_text('{"step": 1, "loss": 4.2}\n')
    before = f"{','.join(columns())}\nof before"
    out.write_text(before)
    failed = invoke("events", laboratory, "--csv", "--json", "--out", out)
    assert "there are no matching events" in failed.error["error"]
    assert "jq" in failed.error["fix"]
    assert out.read_text() == before


@pytest.mark.parametrize("way", ["file", "standard output"])
def test_events_csv_has_row_per_event_without_formulas(
    event_directories: Path, tmp_path: Path, way: str
) -> None:
    if way == "file":
        out = tmp_path / "events.csv"
        assert (
            invoke("events", event_directories, "--csv", "--out", out, "--json").data["events"]
            == 48
        )
        text = out.read_text()
    else:
        text = invoke("events", event_directories, "--csv").out
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == list(columns())
    assert len(rows) == 48
    trained = [row for row in rows if row["kind"] == "trained"]
    assert [(row["member_tier"], row["step"], row["loss"]) for row in trained[:2]] == [
        ("0", "1", "4.9"),
        ("1", "1", "4.9"),
    ]
    assert {row["why"] for row in rows if row["kind"] == "fetch_failed"} == {"'" + EVIL}


def test_merged_event_file_reads_like_member_files(event_directories: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    assert invoke("events", event_directories, "--out", whole).code == 0
    assert invoke("events", whole).out == invoke("events", event_directories).out
    assert invoke("events", whole, "--jsonl").out == whole.read_text()
    first, again = (
        invoke("plot", place, "--out", tmp_path / "a.svg", "--json").data
        for place in (event_directories, whole)
    )
    assert first == again


def test_failed_export_keeps_existing_file(event_directories: Path, tmp_path: Path) -> None:
    assert invoke("events", event_directories, "--out", tmp_path / "no" / "x.csv", "--json").error[
        "error"
    ]
    assert not (tmp_path / "no").exists()


def test_events_with_closed_output_pipe_is_not_an_error(event_directories: Path) -> None:
    completed = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {CONSOLE} events {event_directories} | head -1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert completed.stdout.count("\n") == 1


def test_events_follow_shows_last_and_new_events(event_directories: Path) -> None:
    """Show members that start later, too. Ctrl-C ends the command."""
    command = [
        CONSOLE,
        "events",
        event_directories,
        "--follow",
        "--kind",
        "trained",
        "--lines",
        "3",
        "--json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        events = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert [(line["member_tier"], line["step"]) for line in events] == [(1, 6), (0, 7), (1, 7)]
        Writer(event_directories / "member-2", 2).train(8, 9)
        events = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [(line["member_tier"], line["step"]) for line in events] == [(2, 8), (2, 9)]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stdout.read() == ""


def test_plot_reports_drawn_losses(event_directories: Path, tmp_path: Path) -> None:
    out = tmp_path / "loss.svg"
    drawn = invoke("plot", event_directories, "--out", out, "--json").data
    assert drawn["loss_by_tier"] == {"0": 4.3, "1": 4.3}
    assert (drawn["run_id"], drawn["steps"], drawn["epochs"]) == ("demo", 7, 2)
    assert "<svg" in out.read_text()
    outcome = invoke("plot", event_directories, "--out", tmp_path / "loss.png")
    assert "tier 1: 4.3000" in outcome.out
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def local_training(place: Path, losses: list[float | None]) -> Path:
    """Return events as train-local writes them."""
    place.mkdir(parents=True)
    events = Events(lambda: 1.0, [JsonLines(place / lab_events.EVENTS, lambda: NOON)])
    events.emit(
        lab_events.Started(
            optimizer="adamw", tiers=(0,), parameters=9, sequences=9, steps=len(losses), done=0
        )
    )
    for step, loss in enumerate(losses, start=1):
        rest = {"lr": 1e-3, "tokens": 64, "seconds": 1.0, "bytes": 0, "accepted": 1}
        events.emit(lab_events.Step(step=step, loss=loss, losses=[loss], **rest))
    events.emit(lab_events.HeldOut(step=len(losses), tier=0, loss=3.5, sequences=8))
    return place


def test_plot_of_local_trainings_overlays_them_by_name(tmp_path: Path) -> None:
    one = local_training(tmp_path / "lab" / "adamw", [5.0, 4.0])
    other = local_training(tmp_path / "lab" / "sparseloco", [5.0, None, 3.0])
    with (other / lab_events.EVENTS).open("a") as file:
        file.write('{"at":"2026-11')  # the training is still running
    svg, table, numbers = (tmp_path / f"loss.{kind}" for kind in ("svg", "csv", "json"))
    drawn = invoke("plot", one, other, "--out", svg, "--json").data
    assert [(each["name"], each["steps"], each["loss"]) for each in drawn["trainings"]] == [
        ("adamw", 2, 4.0),
        ("sparseloco", 3, 3.0),
    ]
    assert drawn["trainings"][0]["held_out_by_tier"] == {"0": 3.5}
    picture = svg.read_text()
    assert all(
        f"<!-- {name} -->" in picture
        for name in ("adamw", "sparseloco", "sparseloco, held out, tier 0")
    )
    for _ in range(2):  # an earlier file of its own is replaced
        assert invoke("plot", tmp_path / "lab", "--out", table).code == 0
        assert invoke("plot", one, other, "--out", numbers).code == 0
    assert table.read_text().splitlines()[:3] == ["curve,step,loss", "adamw,1,5.0", "adamw,2,4.0"]
    assert "sparseloco,2" not in table.read_text()
    assert json.loads(numbers.read_text())["losses"]["sparseloco"] == [[1, 5.0], [3, 3.0]]
    (tmp_path / "mine.csv").write_text("mine\n")
    assert (
        "mine.csv" in invoke("plot", one, "--out", tmp_path / "mine.csv", "--json").error["error"]
    )


def test_plot_of_training_with_run_is_refused(event_directories: Path, tmp_path: Path) -> None:
    one = local_training(tmp_path / "adamw", [5.0])
    refused = invoke("plot", one, event_directories, "--json").mistake
    assert f"{event_directories} is not an --out directory of train-local" in refused["error"]
    result = invoke("events", event_directories, one)
    assert f"skipped {one / lab_events.EVENTS}, which train-local wrote" in result.err


def test_plot_to_csv_writes_numbers_of_run(event_directories: Path, tmp_path: Path) -> None:
    assert invoke("plot", event_directories, "--out", tmp_path / "loss.csv").code == 0
    assert "tier 1,7,4.3" in (tmp_path / "loss.csv").read_text().splitlines()


def test_plot_that_cannot_be_drawn_is_refused(event_directories: Path, tmp_path: Path) -> None:
    assert (
        "must end in one of .png"
        in invoke("plot", event_directories, "--out", tmp_path / "loss.txt", "--json").mistake[
            "error"
        ]
    )
    assert (
        "cannot write"
        in invoke("plot", event_directories, "--out", tmp_path / "no" / "loss.png", "--json").error[
            "error"
        ]
    )
    other = Events(lambda: 1.0, [EpochFiles(event_directories / "other", lambda: NOON)])
    other.emit(sample_event("started", run_id="another", wallet="x"))
    other.emit(sample_event("trained", step=1, loss=2.0))
    mixed = invoke("plot", event_directories, "--out", tmp_path / "loss.png", "--json").error
    assert (
        "belong to several runs: another (its events do not say who owns it); demo"
        in mixed["error"]
    )
    assert (
        invoke(
            "plot", event_directories, "--run", "demo", "--out", tmp_path / "loss.png", "--json"
        ).data["run_id"]
        == "demo"
    )


FIRST = ("0wnerA", 100, "a" * 16)
SECOND = ("0wnerB", 200, "b" * 16)


@pytest.fixture
def namesakes(tmp_path: Path) -> Path:
    """Return the directory of one member with the events of two consecutive runs with the same
    id.
    """
    for number, run in enumerate((FIRST, SECOND)):
        # the assertions below distinguish the runs by tier
        member = Writer(tmp_path / "events", number, run)
        member.train(1, 7 + number)
    return tmp_path / "events"


def test_plot_of_two_runs_with_one_id_names_both(namesakes: Path, tmp_path: Path) -> None:
    refused = invoke("plot", namesakes, "--out", tmp_path / "loss.csv", "--json").error
    for owner, created, identity in (FIRST, SECOND):
        assert f"demo of {owner}, created in slot {created}: --run {identity}" in refused["error"]
    assert not (tmp_path / "loss.csv").exists()
    by_id = invoke(
        "plot", namesakes, "--run", "demo", "--out", tmp_path / "loss.csv", "--json"
    ).error
    assert "belong to several runs" in by_id["error"]
    one = invoke(
        "plot", namesakes, "--run", SECOND[2], "--out", tmp_path / "loss.csv", "--json"
    ).data
    assert (one["run_id"], one["steps"], set(one["loss_by_tier"]), one["marks"]) == (
        "demo",
        8,
        {"1"},
        [],
    )
    none = invoke(
        "plot", namesakes, "--run", "other", "--out", tmp_path / "loss.csv", "--json"
    ).error
    assert "no training events of run other" in none["error"]


def test_export_of_two_runs_with_one_id_distinguishes_them(namesakes: Path, tmp_path: Path) -> None:
    whole = invoke("events", namesakes, "--csv", "--kind", "trained")
    rows = list(csv.DictReader(whole.out.splitlines()))
    runs = {(row["run_owner"], row["run_created"], row["run_identity"]) for row in rows}
    assert runs == {(owner, str(created), identity) for owner, created, identity in (FIRST, SECOND)}
    assert f"demo of {FIRST[0]}, created in slot {FIRST[1]}: --run {FIRST[2]}" in whole.err
    one = invoke("events", namesakes, "--run", FIRST[2], "--out", tmp_path / "one.jsonl")
    assert "several runs" not in one.err
    again = invoke("events", tmp_path / "one.jsonl", "--json", "--kind", "trained")
    assert [json.loads(line)["member_tier"] for line in again.out.splitlines()] == [0] * 7


@pytest.mark.parametrize(
    ("ending", "options", "is_table"),
    [
        ("csv", (), True),
        ("CSV", (), True),
        ("jsonl", (), False),
        ("json", (), False),
        ("log", (), False),
        ("log", ("--csv",), True),
    ],
)
def test_export_without_format_uses_file_ending(
    event_directories: Path, tmp_path: Path, ending: str, options: tuple[str, ...], is_table: bool
) -> None:
    out = tmp_path / f"ev.{ending}"
    assert invoke("events", event_directories, *options, "--out", out).code == 0
    assert out.read_text().startswith(",".join(columns())) == is_table


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("--follow", "--out", "all.csv"), ("--follow", "--out")),
        (("--follow", "--speed", "2"), ("--follow", "--speed")),
        (("--speed", "2", "--jsonl"), ("--speed", "--jsonl")),
    ],
)
def test_events_with_contradicting_options_is_refused(
    event_directories: Path, options: tuple[str, ...], names: tuple[str, str]
) -> None:
    refused = invoke("events", event_directories, *options, "--json").mistake
    assert refused["error"] == f"{names[0]} and {names[1]} contradict each other"


def test_events_lines_without_follow_are_the_last_ones(event_directories: Path) -> None:
    outcome = invoke("events", event_directories, "--kind", "trained", "--lines", "2", "--json")
    assert [json.loads(line)["step"] for line in outcome.out.splitlines()] == [7, 7]


@pytest.mark.parametrize(("ending", "flag"), [("csv", "--jsonl"), ("jsonl", "--csv")])
def test_export_format_against_file_ending_is_refused(
    event_directories: Path, tmp_path: Path, ending: str, flag: str
) -> None:
    out = tmp_path / f"ev.{ending}"
    refused = invoke("events", event_directories, flag, "--out", out, "--json").mistake
    assert flag in refused["error"]
    assert not out.exists()
