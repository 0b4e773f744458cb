"""Tests of a screen's board: phases, warnings that expire, bounds, the chart, and texts of
messages.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from aftermath.events.progress import span
from aftermath.ui.terminal.board import Alerts, Board
from aftermath.ui.terminal.messages import (
    MESSAGES,
    End,
    Facts,
    Line,
    StatusMessage,
    line_of,
    message_of,
)
from aftermath.ui.terminal.pages import LABEL, chart, progress_text, run_page
from events.sample_events import sample_event
from rules import builders
from ui.terminal.tui_boards import EVIL, busy_member, event_message, where


def lines_of(alerts: Alerts, now: float) -> list[str]:
    return [alert.text(now) for alert in alerts.now(now)]


def test_run_page_without_answer_is_red() -> None:
    board = Board("watch", "demo")
    board.take(StatusMessage(replace(where(), silent=12)))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(run_page(board, 0.0, 80, 24))
    written = console.file.getvalue()
    assert "\x1b[37;41m no answer for 12 s \x1b[0m last heard: " in written


@pytest.mark.parametrize(
    ("rounds_per_epoch", "epoch", "expected"),
    [
        (50, 2, "waits: it joins at the next epoch, in about 10 rounds"),
        (0, 2, "waits: it joins at the next epoch "),  # its epochs end at a time limit
        (50, 3, "joining"),
    ],
)
def test_run_page_of_waiting_member_shows_join_time(
    rounds_per_epoch: int, epoch: int, expected: str
) -> None:
    board = Board("member", "demo", 1)
    rules = builders.config(
        total_steps=120, rounds_per_epoch=rounds_per_epoch, min_clients=2, init_min_clients=3
    )
    for message in (
        event_message("measured", weight=300, seconds=1.0),
        event_message("waiting", epoch=3),
    ):
        board.take(message)
    board.take(StatusMessage(where(config=rules, epoch=epoch)))
    console = Console(file=io.StringIO(), width=80)
    console.print(run_page(board, 0.0, 80, 24))
    written = console.file.getvalue()
    assert f"now        {expected}" in written


def test_board_phase_follows_events() -> None:
    board = Board("member", "demo", 1)
    assert board.now == "starting"
    steps: list[tuple[str, dict[str, Any], str]] = [
        ("started", {"run_id": "demo"}, "looking for the run"),
        (
            "measuring",
            {"tier": 1, "parameters": 5, "limit": 60.0},
            "measuring this machine's speed",
        ),
        ("measured", {"weight": 300, "seconds": 1.0}, "joining"),
        (
            "state",
            {
                "epoch": 3,
                "state": "WAITING_FOR_MEMBERS",
                "step": 90,
                "total_steps": 120,
                "since": 5,
            },
            "epoch 3: waiting for members",
        ),
        (
            "state",
            {"epoch": 3, "state": "WARMUP", "step": 90, "total_steps": 120, "since": 5},
            "epoch 3: warm-up",
        ),
        ("round", {"epoch": 3, "height": 7, "step": 91, "since": 8}, "epoch 3 round 7: training"),
        (
            "witnessed",
            {"height": 6, "held": 3, "sent": True, "seconds": 0.1},
            "epoch 3 round 7: training",
        ),
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
        board.take(event_message(kind, **fields))
        assert board.now == now
    assert board.leaving


def test_waiting_member_sees_steps_of_others() -> None:
    """A waiting member has no events about the others' rounds, so it shows the chain's state. A
    member that trains shows its own events, even if the chain is a step ahead.
    """
    board = Board("member", "demo", 1)
    board.take(
        event_message(
            "state", t=11.0, epoch=2, state="ROUND_TRAIN", step=17, total_steps=120, since=1000
        )
    )
    board.take(StatusMessage(where(19)))
    assert progress_text(board) == "step 17 of 120"
    board.take(StatusMessage(where(23)))
    assert progress_text(board).startswith("step 22 of 120, ")
    page = Console(width=80, file=io.StringIO(), color_system=None)
    page.print(run_page(board, 130.0, 80, 24))
    assert "step 22 of 120, " in page.file.getvalue()  # type: ignore[attr-defined]


# --- warnings ---


def test_alert_is_removed_by_its_ending_event() -> None:
    alerts = Alerts()
    alerts.take(
        sample_event("warning", t=0.0, message="the model is not to be had yet", until="model")
    )
    alerts.take(sample_event("round", t=1.0))
    assert lines_of(alerts, 10_000.0) == ["2 h 47 min ago: the model is not to be had yet"]
    alerts.take(sample_event("model", t=2.0, source="peers", step=0))
    assert lines_of(alerts, 3.0) == []


def test_alert_without_ending_event_expires() -> None:
    alerts = Alerts()
    alerts.take(sample_event("warning", t=0.0, message="a node does not answer"))
    assert lines_of(alerts, 120.0) == ["2 min ago: a node does not answer"]
    alerts.take(sample_event("warning", t=120.0, message="a node does not answer"))
    assert lines_of(alerts, 120.0) == ["0 s ago, 2 times: a node does not answer"]
    assert lines_of(alerts, 419.0) == ["5 min ago, 2 times: a node does not answer"]
    assert lines_of(alerts, 421.0) == []


def test_error_alert_stays_and_newest_come_first() -> None:
    alerts = Alerts()
    alerts.take(sample_event("error", t=0.0, message=EVIL))
    for number in range(10):
        alerts.take(sample_event("warning", t=1000.0 + number, message=f"trouble {number}"))
    lines = lines_of(alerts, 1010.0)
    assert lines[0] == "1 s ago: trouble 9"
    assert lines[-1] == "17 min ago: [bold red]evil[/]�[2J�gpj.exe"
    for number in range(60):
        alerts.take(sample_event("warning", t=1010.0, message=f"more {number}"))
    assert len(lines_of(alerts, 1010.0)) <= 20


# --- memory ---


def test_board_memory_is_bounded() -> None:
    board = Board("member", "demo", 1)
    for step in range(1, 2101):
        board.take(event_message("trained", step=step, loss=5.0 + step, tokens=10))
        board.take(event_message("fetch_failed", height=step, seat=2, why="nobody answers"))
    assert (len(board.log.lines), board.log.count) == (1000, 2100)
    assert len(board.losses) == 2000
    assert (board.counts.tokens, board.counts.failed) == (21_000, 2100)
    assert board.counts.trouble == "seat 2, round 2100: nobody answers"


@pytest.mark.parametrize("width", [30, 78, 118])
@pytest.mark.parametrize("steps", [2, 7, 120, 2000])
def test_chart_fits_and_shows_its_scale(steps: int, width: int) -> None:
    curve = [(step, 6.0 - 3.0 * step / steps) for step in range(1, steps + 1)]
    lines = chart(curve, width, 9)
    assert len(lines) == 9
    assert max(map(len, lines)) <= width
    lengths = [len(line) for line in lines[:-1]]
    assert lengths == sorted(lengths), "it falls from line to line"
    assert lengths[-1] - LABEL > (width - LABEL) / 2
    assert lines[0].startswith(f"{curve[0][1]:7.3f} █")
    assert lines[7].startswith(f"{curve[-1][1]:7.3f} ")
    assert lines[-1].split() == ["step", "1", f"{steps:,}"]


def test_chart_without_data_or_room_is_empty() -> None:
    assert chart([], 80, 9) == chart([(1, 1.0)], 12, 9) == chart([(1, 1.0)], 80, 2) == []


def test_member_messages_survive_transport() -> None:
    sent: list[MESSAGES] = [
        *busy_member(2),
        StatusMessage(where(), frozenset([bytes(32)])),
        Facts("Run", {EVIL: EVIL}),
        Line(1.5, f"{EVIL}\nand more"),
        End(),
    ]
    for message in sent:
        line = line_of(message)
        assert line.count(b"\n") == 1
        assert message_of(line) == message


def test_run_page_of_restarted_member_shows_deadline() -> None:
    """The epoch that it waits for makes no more rounds, so the rounds left say nothing."""
    board = Board("member", "demo", 0)
    rules = builders.config(rounds_per_epoch=50, max_round_train_time=40, init_min_clients=1)
    board.take(event_message("waiting", epoch=3, ends_in=31))
    board.take(StatusMessage(where(config=rules, epoch=2)))
    assert board.status is not None
    assert board.status.deadline is not None
    console = Console(file=io.StringIO(), width=80)
    console.print(run_page(board, 0.0, 80, 24))
    when = span(max(0, board.status.deadline))
    assert f"waits: it joins at the next epoch, in {when} at the latest" in console.file.getvalue()
