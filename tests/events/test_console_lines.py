"""Test when the console draws a screen and when it prints lines."""

from __future__ import annotations

import contextlib
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.events.console import redraws
from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from events.sample_events import sample_event


@pytest.mark.parametrize(
    ("term", "drawn"), [("xterm-256color", True), ("dumb", False), ("unknown", False)]
)
def test_picture_is_drawn_only_on_capable_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, term: str, drawn: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "pipe").open("w") as pipe:
        assert redraws(Console(file=terminal)) is drawn
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert not redraws(Console(file=pipe))
    os.close(ours)


@pytest.mark.slow
def test_tui_log_into_pipe_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as stack:
        events = events_of(TrainSettings(run_id="demo", logs="tui"), stack)
        events.emit(sample_event("state", state="WARMUP", step=3, total_steps=10))
        output = capsys.readouterr().out
    assert output.strip().endswith("epoch 0: warm-up; step 3 of 10")
    assert "\x1b" not in output
