"""What a testnet without panes prints of its clients."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.base.verbosity import Verbosity
from aftermath.testnet.lines import Lines
from aftermath.watch import kinds
from aftermath.watch.reader import About, EventRecord


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (kinds.Warning(message="no checkpoint was kept"), "client-1 | warning: no checkpoint was kept"),
        (kinds.Loading(), "client-1 | loading PyTorch…"),
    ],
)
def test_lines_mark_warnings_of_clients(event: kinds.Event, line: str) -> None:
    console = Console(file=(out := io.StringIO()))
    about = About(run_id="demo", tier=0, wallet="Key1", version="1")
    told = EventRecord(at=datetime.now(UTC), about=about, event=event, path=Path("events/client-1/events.jsonl"))
    Lines(console, Verbosity.INFO, 8).told([told])
    assert out.getvalue().rstrip() == line
