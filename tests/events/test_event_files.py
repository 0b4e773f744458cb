"""Test a member's event files: one per epoch, even after kills, full disks and concurrent reads."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aftermath.events import event_types
from aftermath.events.event_files import EpochFiles, process_of
from aftermath.events.reader import MOST_LINE, EventReader, EventRecord, NoEvents, flat
from aftermath.events.stream import Events, plain
from events.event_writer import EPOCH
from events.sample_events import KINDS, sample_event

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TESTS = Path(__file__).parents[1]


class Member:
    """A member that writes events with dates chosen by the test."""

    def __init__(self, directory: Path, wallet: str, tier: int = 0, at: datetime = NOON) -> None:
        self.at = at
        self.sink = EpochFiles(directory, lambda: self.at)
        self.events = Events(lambda: 1.0, [self.sink])
        self.say("started", run_id="demo", tier=tier, wallet=wallet, version="0.1.0")

    def say(self, kind: str, after: float = 0.0, **fields: Any) -> None:
        self.at += timedelta(seconds=after)
        self.events.emit(sample_event(kind, **fields))


def steps(records: list[EventRecord]) -> list[tuple[str, int]]:
    return [
        (one.origin.wallet, one.event.step)
        for one in records
        if isinstance(one.event, event_types.ShareTrained)
    ]


def read_events(*places: Path) -> list[EventRecord]:
    return list(EventReader(places).read())


# --- what is written ---


def test_every_epoch_has_own_event_file_with_header(tmp_path: Path) -> None:
    member = Member(tmp_path / "events", "Wal1et", tier=2)
    member.say("measured", after=1, weight=10)
    for epoch in (0, 0, 3):
        member.say("state", after=1, epoch=epoch, state="WARMUP")
        member.say("trained", after=1, epoch=epoch, step=epoch + 1)
    files = sorted((tmp_path / "events").iterdir())
    assert [path.name.split("-", 3)[2:] for path in files] == [
        ["00000", "start.jsonl"],
        ["00001", "epoch-0.jsonl"],
        ["00002", "epoch-3.jsonl"],
    ]
    assert len({process_of(path) for path in files}) == 1
    for part, path in enumerate(files):
        assert path.stat().st_mode & 0o777 == 0o600
        first = json.loads(path.read_text().splitlines()[0])
        origin = {
            "kind": "started",
            "run_id": "demo",
            "tier": 2,
            "wallet": "Wal1et",
            "version": "0.1.0",
        }
        assert origin.items() <= first.items()
        assert first.get("part", 0) == part
        assert datetime.fromisoformat(first["at"]) >= NOON
    records = read_events(tmp_path / "events")
    names = [str(type(one.event).__struct_config__.tag) for one in records]
    assert names == [
        "started",
        "measured",
        "state",
        "trained",
        "state",
        "trained",
        "state",
        "trained",
    ]
    assert {one.origin.wallet for one in records} == {"Wal1et"}
    assert [one.at for one in records] == sorted(one.at for one in records)


def test_existing_event_file_is_never_opened(tmp_path: Path) -> None:
    Member(tmp_path, "A")
    with pytest.raises(FileExistsError):
        EpochFiles(tmp_path, lambda: NOON)


def test_events_of_killed_process_are_kept_except_torn_line(tmp_path: Path) -> None:
    """A real process is killed while it writes."""
    with subprocess.Popen(
        [sys.executable, "-m", "events.event_writer", tmp_path],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "two epochs are over\n"
        process.send_signal(signal.SIGKILL)
    reader = EventReader([tmp_path])
    records = list(reader.read())
    trained = [step for _, step in steps(records)]
    assert trained == list(range(1, len(trained) + 1)), "nothing that was told is missing"
    assert len(trained) > 2 * EPOCH
    files = sorted(tmp_path.iterdir())
    assert all(path.read_bytes().endswith(b"\n") for path in files[:-1])
    newest = files[-1].read_bytes()
    # a kill in the middle of the write itself
    cut = newest[: newest.rfind(b"\n", 0, len(newest) - 1) + 20]
    files[-1].write_bytes(cut)
    reader = EventReader([tmp_path])
    assert len(list(reader.read())) >= len(records) - 1
    assert reader.notes() == [f"skipped the incomplete last line of {files[-1]}"]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process whose files cannot exceed 20,000 bytes, as on a full disk."""
    with subprocess.Popen(
        [sys.executable, "-m", "events.event_writer", tmp_path, "20000"],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_full_disk_costs_events_not_the_process(
    tmp_path: Path, limited: subprocess.Popen[str]
) -> None:
    assert limited.stdout is not None
    assert limited.stderr is not None
    assert limited.stdout.readline() == "two epochs are over\n", "it continued"
    warning = limited.stderr.readline()
    assert warning.startswith(
        f"warning: cannot write events to {tmp_path}: File too large; the next epoch tries "
    )
    resource.prlimit(
        limited.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    )
    before = len(list(tmp_path.iterdir()))
    reader = EventReader([tmp_path])
    whole = f"epoch-{before + 1}.jsonl"  # an epoch that began with room
    while not any(path.name.endswith(whole) for path in tmp_path.iterdir()):
        assert limited.poll() is None
    limited.kill()
    limited.wait()
    trained = [step for _, step in steps(list(reader.read()))]
    assert trained[:3] == [1, 2, 3]
    assert len(trained) < max(trained), "some are missing"
    later = [step for step in trained if step >= before * EPOCH + 1]
    assert later[:EPOCH] == list(range(later[0], later[0] + EPOCH)), (
        "and with room again all are there"
    )
    notes = reader.notes()
    assert any("the member could not write" in note and "events before" in note for note in notes)
    assert any("incomplete last line" in note or "cannot read" in note for note in notes)


def test_closed_log_warning_has_no_error_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(_: event_types.Event) -> None:
        raise OSError(28, "No space left on device", "/logs/a.jsonl")

    Events(lambda: 0.0, [full]).emit(event_types.Loading())
    line = "warning: closed a log that cannot be written: /logs/a.jsonl: No space left on device\n"
    assert capsys.readouterr().err == line


def test_full_disk_warns_once_until_next_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member(tmp_path, "A")
    opened = os.open

    def refuse(path: Any, *rest: Any) -> int:
        if Path(path).parent == tmp_path:
            raise OSError(28, "No space left on device")
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", refuse)
    for epoch in (0, 1):
        member.say("state", epoch=epoch, state="WARMUP")
        member.say("trained", step=epoch + 1)
    monkeypatch.undo()
    member.say("state", epoch=2, state="WARMUP")
    member.say("trained", step=3)
    assert capsys.readouterr().err.count("No space left on device; the next epoch tries again") == 1
    reader = EventReader([tmp_path])
    assert steps(list(reader.read())) == [("A", 3)]
    assert [note for note in reader.notes() if "not write 4 events before " in note]


# --- what is read ---


@pytest.mark.parametrize("apart", [True, False], ids=["a directory each", "one directory"])
def test_reader_merges_members_by_time(tmp_path: Path, apart: bool) -> None:
    places = [tmp_path / name if apart else tmp_path for name in "AB"]
    first = Member(places[0], "A")
    second = Member(places[1], "B", at=NOON + timedelta(seconds=0.5))
    for step in range(1, 40):
        for member in (first, second):
            if step % 10 == 1:
                member.say("state", epoch=step // 10, state="WARMUP")
            member.say("trained", after=1, step=step)
    expected = [(name, step) for step in range(1, 40) for name in "AB"]
    assert steps(read_events(tmp_path)) == expected
    files = list(tmp_path.rglob("*.jsonl"))
    assert steps(read_events(*files)) == expected, "files are named one by one"


def test_clock_set_back_keeps_event_order(tmp_path: Path) -> None:
    member = Member(tmp_path, "A")
    for step, jump in ((1, 1), (2, -3600), (3, 1)):
        member.say("trained", after=jump, step=step)
    assert steps(read_events(tmp_path)) == [("A", 1), ("A", 2), ("A", 3)]


def test_reader_follows_growing_and_new_files(tmp_path: Path) -> None:
    first = Member(tmp_path / "a", "A")
    reader = EventReader([tmp_path])
    assert len(list(reader.read())) == 1
    assert list(reader.read()) == []
    first.say("state", epoch=0, state="WARMUP")
    first.say("trained", after=1, step=1)
    second = Member(tmp_path / "b", "B", at=NOON + timedelta(seconds=2))
    second.say("trained", after=1, step=1)
    assert steps(list(reader.read())) == [("A", 1), ("B", 1)]
    path = sorted((tmp_path / "a").iterdir())[-1]
    line = json.dumps({"at": NOON.isoformat(), **plain(sample_event("trained", step=2))}).encode()
    with path.open("ab", buffering=0) as file:
        file.write(line[:30])
        assert list(reader.read()) == []
        assert reader.notes() == [f"skipped the incomplete last line of {path}"]
        file.write(line[30:] + b"\n")
    assert steps(list(reader.read())) == [("A", 2)]
    assert reader.notes() == []


BAD = [
    b"",
    b"not json",
    b"[]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"at":"2026-11-21T12:00:00","kind":"left","finished":true}',  # no time zone
    b'{"at":"2026-11-21T12:00:00+00:00","kind":"of another version"}',
    b'{"at":"2026-11-21T12:00:00+00:00","kind":"trained","step":"1"}',
    b'{"kind":"left","finished":true}',
]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_reader_skips_and_reports_invalid_line(tmp_path: Path, bad: bytes) -> None:
    member = Member(tmp_path, "A")
    member.say("trained", step=1)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(bad + b"\n")
    member.say("trained", step=2)
    reader = EventReader([tmp_path])
    assert steps(list(reader.read())) == [("A", 1), ("A", 2)]
    (note,) = reader.notes()
    assert note == f"skipped 1 line of {path} (line 3), which this version cannot read"


@pytest.mark.parametrize("size", [MOST_LINE - 1, MOST_LINE, MOST_LINE + 1, 3 * MOST_LINE])
def test_endless_line_uses_bounded_memory(tmp_path: Path, size: int) -> None:
    member = Member(tmp_path, "A")
    (path,) = tmp_path.iterdir()
    with path.open("ab") as file:
        file.write(b"x" * size + b"\n")
    member.say("trained", step=1)
    reader = EventReader([tmp_path])
    assert steps(list(reader.read())) == [("A", 1)]
    assert reader.notes() == [f"skipped 1 line of {path} (line 2), which this version cannot read"]


def test_reader_skips_events_without_header(tmp_path: Path) -> None:
    path = tmp_path / "headless.jsonl"
    path.write_text(
        json.dumps({"at": NOON.isoformat(), **plain(sample_event("trained", step=1))}) + "\n"
    )
    reader = EventReader([path])
    assert list(reader.read()) == []
    assert "line 1" in reader.notes()[0]


@given(st.lists(st.binary(max_size=200), max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_reader_survives_random_bytes(tmp_path: Path, lines: list[bytes]) -> None:
    path = tmp_path / "any.jsonl"
    path.write_bytes(b"\n".join(lines))
    reader = EventReader([path])
    assert list(reader.read()) == []


def test_reader_of_missing_place_raises(tmp_path: Path) -> None:
    with pytest.raises(NoEvents, match="no such file"):
        EventReader([tmp_path / "nowhere"])


def test_event_objects_are_read_back_unchanged(tmp_path: Path) -> None:
    """Write an event of each kind, from two members into one file."""
    for name in "AB":
        member = Member(tmp_path / "events", name, tier=1, at=NOON + timedelta(seconds=ord(name)))
        for kind in KINDS:
            if kind != "started":
                member.say(kind, after=0.25)
    records = read_events(tmp_path / "events")
    assert len(records) == 2 * len(KINDS)
    whole = tmp_path / "whole.jsonl"
    whole.write_text("".join(json.dumps(flat(one)) + "\n" for one in records))
    again = read_events(whole)
    assert [(one.at, one.origin, one.event) for one in again] == [
        (one.at, one.origin, one.event) for one in records
    ]


def test_event_fields_never_use_header_names() -> None:
    for kind in KINDS:
        assert (
            not {"at", "run", "member", "member_tier", "client"} & plain(sample_event(kind)).keys()
        )
