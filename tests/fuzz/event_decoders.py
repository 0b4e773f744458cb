"""Decoders of event files from others, and every view of them."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.console import Console

from aftermath.events.history import EventHistory
from aftermath.events.reader import CsvTable, EventReader
from aftermath.events.stream import plain
from aftermath.events.text import EventLines
from events.sample_events import KINDS, sample_event
from fuzz.decoder import Decode, Decoder, through_file

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
TELLER = {"run": "demo", "member": "Wal1et", "member_tier": 1, "client": "0.1.0"}


def event_files() -> tuple[list[bytes], Decode]:
    """Return one file per kind of event and one with all, with and without a sender."""
    lines = [
        {"at": (NOON + timedelta(seconds=number)).isoformat(), **plain(sample_event(kind))}
        for number, kind in enumerate(KINDS)
    ]
    files = [[lines[0], line] for line in lines[1:]] + [
        lines,
        [{**line, **TELLER} for line in lines],
    ]
    seeds = ["".join(json.dumps(line) + "\n" for line in file).encode() for file in files]
    return seeds, through_file("events.jsonl", everything_of)


def everything_of(path: Path) -> None:
    """Read an event file and build every view from it."""
    reader = EventReader([path])
    history = EventHistory()
    views = (
        EventLines(Console(file=io.StringIO()), everything=True),
        CsvTable(io.StringIO()),
        history.take,
    )
    for record in reader.read():
        for view in views:
            view(record)
    reader.notes()
    history.loss_curve()
    history.loss_by_tier()
    history.sent_by_tier()


EVENTS = [Decoder("events", event_files)]
