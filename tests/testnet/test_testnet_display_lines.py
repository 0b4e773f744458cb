"""Test the lines that a testnet without panes prints about its clients."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.base.stdio import Verbosity
from aftermath.events import event_types
from aftermath.events.reader import EventOrigin, EventRecord
from aftermath.testnet.display import DisplayLines


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            event_types.Warning(message="no checkpoint was kept"),
            "client-1 | warning: no checkpoint was kept",
        ),
        (event_types.Loading(), "client-1 | loading PyTorch…"),
    ],
)
def test_lines_mark_warnings_of_clients(event: event_types.Event, line: str) -> None:
    console = Console(file=(out := io.StringIO()))
    origin = EventOrigin(run_id="demo", tier=0, wallet="Key1", version="1")
    record = EventRecord(
        at=datetime.now(UTC), origin=origin, event=event, path=Path("events/client-1/events.jsonl")
    )
    DisplayLines(console, Verbosity.INFO, 8).show_events([record])
    assert out.getvalue().rstrip() == line
