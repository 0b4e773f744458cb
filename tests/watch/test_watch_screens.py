"""The live picture of a member, as text: with nothing to show, busy, in trouble, and going; small and large."""

from __future__ import annotations

import contextlib
import io
import os
import pty
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from aftermath.train.settings import TrainSettings
from aftermath.train.sinks import events_of
from aftermath.watch.terminal import TerminalView, redraws
from watch.said import said

SIZES = [(80, 24), (200, 50)]
FACTS = ["now", "run", "speed", "peers", "traffic", "chain"]


class Watched:
    """A view, its clock, and the terminal it is drawn in."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.now = 0.0
        self.console = Console(
            file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, record=True
        )
        self.view = TerminalView(self.console, "demo", 1, lambda: self.now)

    def say(self, kind: str, **fields: Any) -> None:
        self.view(said(kind, t=self.now, **fields))

    def lines(self) -> list[str]:
        """The picture's lines, without its frame; all of them must fit."""
        self.console.print(self.view)
        text = self.console.export_text()
        lines = text.splitlines()
        assert len(lines) <= self.console.height - 1, "the last line of a terminal belongs to its cursor"
        assert max(map(len, lines)) <= self.console.width
        assert "run demo, tier 1" in lines[0]
        assert lines[-1].strip() == "", "^C is echoed on the last line"
        return [line.strip("│ ").rstrip() for line in lines[1:-2]]

    def fact(self, name: str) -> str:
        [line] = [line for line in self.lines() if line.split(" ")[0] == name]
        return line.removeprefix(name).strip()

    def start_run(self, total: int = 120) -> None:
        self.say("state", epoch=0, state="WAITING_FOR_MEMBERS", step=0, total_steps=total, since=1000)

    def train(self, step: int, seconds: float = 2.0) -> None:
        """One round of the first epoch."""
        self.now += seconds
        self.say("round", epoch=0, height=step - 1, step=step, since=1000 + int(self.now))
        self.say("trained", epoch=0, height=step - 1, step=step, loss=6 - step / 40, tokens_per_sec=1234.5)
        self.say(
            "traffic",
            peers=2,
            sent=1_000_000 * step,
            received=2_000_000 * step,
            costs={"transactions": step, "lamports": 5000 * step},
        )


@pytest.mark.parametrize("size", SIZES)
def test_before_anything_has_happened_every_line_has_its_place(size: tuple[int, int]) -> None:
    watched = Watched(*size)
    lines = watched.lines()
    assert [line.split(" ")[0] for line in lines] == [*FACTS, "no"]
    assert watched.fact("now") == "starting"
    assert lines[-1] == "no loss yet"


@pytest.mark.parametrize("size", SIZES)
def test_a_busy_screen_keeps_its_lines_where_they_were(size: tuple[int, int]) -> None:
    watched = Watched(*size)
    watched.start_run()
    for step in range(1, 42):
        watched.train(step)
    lines = watched.lines()
    assert [line.split(" ")[0] for line in lines] == [*FACTS, "loss,"]
    assert watched.fact("now") == "epoch 0 round 40: sharing"
    assert watched.fact("run") == "step 40 of 120, 3 min left"  # 80 steps of 2 seconds
    assert watched.fact("speed") == "1,234 tokens/s"
    assert watched.fact("traffic") == "41.00 MB sent, 82.00 MB received"
    assert watched.fact("chain") == "41 transactions, 205,000 lamports"
    assert lines[-1].startswith("loss, steps 1 to 41:  5.975 █")
    assert lines[-1].endswith("▁ 4.975")


@pytest.mark.parametrize("size", SIZES)
def test_a_screen_full_of_trouble_fits_and_shows_the_newest(size: tuple[int, int]) -> None:
    watched = Watched(*size)
    watched.start_run()
    for number in range(60):
        watched.now += 1
        watched.say("warning", message=f"trouble {number}: " + "very long words " * 12)
    lines = watched.lines()
    assert [line.split(" ")[0] for line in lines[:6]] == FACTS
    assert any("0 s ago: trouble 59" in line for line in lines)
    assert not any("trouble 1:" in line for line in lines)


def test_one_warning_longer_than_the_screen_is_cut_not_hidden() -> None:
    watched = Watched()
    watched.say("warning", message="start " + "word " * 2000)
    assert any("start word" in line for line in watched.lines())


def test_a_terminal_too_small_for_warnings_shows_none() -> None:
    watched = Watched(40, 11)
    watched.start_run()
    watched.train(1)
    watched.train(2)
    watched.say("warning", message="word " * 50)
    assert [line.split(" ")[0] for line in watched.lines()] == [*FACTS, "loss,"]


def test_the_phases_follow_the_events() -> None:
    watched = Watched()
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("started", {"run_id": "demo"}, "looking for the run"),
        ("measuring", {"tier": 1, "parameters": 5, "limit": 60.0}, "measuring this machine's speed"),
        ("measured", {"weight": 300, "seconds": 1.0}, "joining"),
        (
            "state",
            {"epoch": 3, "state": "WAITING_FOR_MEMBERS", "step": 90, "total_steps": 120, "since": 5},
            "epoch 3: waiting for members",
        ),
        ("state", {"epoch": 3, "state": "WARMUP", "step": 90, "total_steps": 120, "since": 5}, "epoch 3: warm-up"),
        ("round", {"epoch": 3, "height": 7, "step": 91, "since": 8}, "epoch 3 round 7: training"),
        ("witnessed", {"height": 6, "held": 3, "sent": True, "seconds": 0.1}, "epoch 3 round 7: training"),
        (
            "trained",
            {"epoch": 3, "height": 7, "step": 91, "loss": None, "tokens_per_sec": 1.0},
            "epoch 3 round 7: sharing",
        ),
        ("cooldown", {"epoch": 3, "step": 91, "hashes": {}}, "epoch 3: cooldown"),
        ("leaving", {}, "stopping"),
        ("left", {"finished": False}, "left the run"),
        ("finished", {"step": 91}, "the run is finished"),
        ("left", {"finished": True}, "the run is finished"),
    ]
    for kind, fields, now in steps:
        watched.say(kind, **fields)
        assert watched.fact("now") == now


# --- warnings ---------------------------------------------------------------------------------------------------------


def test_a_warning_goes_when_the_event_comes_that_outdates_it() -> None:
    watched = Watched()
    watched.say("warning", message="the model is not to be had yet", until="model")
    watched.now += 10_000
    watched.start_run()
    assert any("2 h 47 min ago: the model is not to be had yet" in line for line in watched.lines())
    watched.say("model", source="peers", step=0)
    assert not any("not to be had" in line for line in watched.lines())


def test_a_warning_that_nothing_outdates_goes_after_some_minutes() -> None:
    watched = Watched()
    watched.say("warning", message="a node does not answer")
    watched.now += 120
    assert any("2 min ago: a node does not answer" in line for line in watched.lines())
    watched.say("warning", message="a node does not answer")
    assert any("0 s ago, 2 times: a node does not answer" in line for line in watched.lines())
    watched.now += 299
    assert any("5 min ago, 2 times" in line for line in watched.lines())
    watched.now += 2
    assert not any("does not answer" in line for line in watched.lines())


# --- where there is no terminal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("term", "drawn"), [("xterm-256color", True), ("dumb", False), ("unknown", False)])
def test_a_picture_is_drawn_only_where_it_can_be_drawn_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, term: str, drawn: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, (tmp_path / "pipe").open("w") as pipe:
        assert redraws(Console(file=terminal)) is drawn
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert not redraws(Console(file=pipe))
    os.close(ours)


def test_the_live_picture_into_a_pipe_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.ExitStack() as stack:
        events = events_of(TrainSettings(run_id="demo", logs="tui"), stack)
        events.emit(said("state", state="WARMUP", step=3, total_steps=10))
        shown = capsys.readouterr().out
    assert shown.strip().endswith("epoch 0: warm-up; step 3 of 10")
    assert "\x1b" not in shown
