"""Messages for tests of a member's, a server's and a watched run's screen: empty, busy, and with
failures.
"""

from __future__ import annotations

import hashlib
from typing import Any

from solders.pubkey import Pubkey

from aftermath.events.status import RunStatus, status_of
from aftermath.rules.state import MemberState, RunState
from aftermath.ui.terminal.board import Board, Role
from aftermath.ui.terminal.messages import MESSAGES, EventMessage, Facts, Line, StatusMessage
from aftermath.ui.terminal.run_app import RunApp
from events.sample_events import sample_event
from rules import builders

NOW = 130.0
EVIL = "[bold red]evil[/]\x1b[2J\u202egpj.exe"
SIGNERS = [hashlib.sha256(bytes([seat])).digest() for seat in range(64)]
WALLET = str(Pubkey(SIGNERS[1]))


def event_message(kind: str, **fields: Any) -> EventMessage:
    return EventMessage(sample_event(kind, **fields))  # type: ignore[arg-type]


def where(step: int = 41, *, count: int = 5, **overrides: Any) -> RunStatus:
    """Return the status of a run of 120 steps in the middle of an epoch, with members of three
    tiers. One has left.
    """
    seats = {
        seat: builders.seat(
            seat,
            signer=SIGNERS[seat],
            tier=seat % 3,
            weight=300 // (1 + seat % 3),
            points=1234 * (seat + 1),
            state=MemberState.DROPPED if seat == 3 else MemberState.HEALTHY,
        )
        for seat in range(count)
    }
    now = builders.header(0b10111, elected=3, attestations=1, height=step - 1, step=step)
    config = builders.config(
        total_steps=120,
        max_round_train_time=40,
        round_witness_time=10,
        min_clients=2,
        init_min_clients=3,
    )
    values: dict[str, Any] = {
        "rounds": (now,),
        "config": config,
        "state_started_at": 1000,
        "step": step,
        "epoch_started_at": 900,
    }
    run = builders.run(
        RunState.ROUND_TRAIN,
        **{**values, "run_id": "demo", "epoch": 2, "start_step": 1} | overrides,
    )
    return status_of(run, builders.model(), builders.members(seats), 1012)


def busy_member(steps: int = 41) -> list[MESSAGES]:
    """Return the messages of a member in the middle of a run, up to the share of this step."""
    messages: list[MESSAGES] = [
        event_message("started", t=0.0, run_id="demo", tier=1, wallet=WALLET, version="0.1.0"),
        event_message("kernels", t=1.0, missing=None),
        event_message("measuring", t=2.0, tier=1, parameters=5_400_000, limit=10.0),
        event_message("measured", t=9.0, weight=312, seconds=7.0),
        event_message("joined", t=10.0, seat=1, tier=1, weight=312, epoch=2),
        event_message(
            "state", t=11.0, epoch=2, state="WARMUP", step=0, total_steps=120, since=1000
        ),
        event_message("model", t=14.0, source="peers", step=0),
    ]
    for step in range(1, steps + 1):
        at = {"t": 14.0 + 2 * step, "epoch": 2, "height": step - 1, "step": step}
        loss = 6.5 - 4.5 * step / (step + 12) + (step % 5) / 25
        messages += [
            event_message("round", **at, since=1014 + 2 * step),
            event_message(
                "trained",
                **at,
                loss=loss,
                tokens=4096,
                tokens_per_sec=2345.6,
                seconds=1.31,
                encode_seconds=0.08,
            ),
            event_message(
                "witnessed", t=at["t"] + 0.2, height=step - 1, held=4, sent=True, seconds=0.1
            ),
            event_message("fetched", t=at["t"] + 0.4, height=step - 1, seat=2, level=1),
            event_message("applied", **{**at, "t": at["t"] + 0.5}, results=4, waited=0.21),
        ]
    messages += [
        event_message(
            "traffic",
            t=100.0,
            peers=3,
            sent=11_700_000,
            received=35_100_000,
            costs={"transactions": 44, "lamports": 220_000},
            sent_by_kind={"announcement": 90_000, "blob": 11_610_000},
        ),
        event_message(
            "evaluated",
            t=101.0,
            step=40,
            task="source-choice",
            metric="acc",
            value=0.3125,
            error=0.02,
            docs=200,
        ),
        event_message(
            "sample",
            t=102.0,
            step=40,
            prompt="def ",
            text="total(self, values):\n    return sum(values)",
        ),
        Facts("Chain", {"rpc": "http://127.0.0.1:8899"}),
        StatusMessage(where()),
    ]
    return messages


def failing_member() -> list[MESSAGES]:
    """Return messages of a busy member with failing peers, node and disk. Their texts try to be
    more than text.
    """
    return [
        *busy_member(),
        event_message(
            "warning",
            t=60.0,
            message="this machine is not waited for any more: it is too slow for the run's rounds",
        ),
        event_message("fetch_failed", t=110.0, height=40, seat=2, why="nobody answers"),
        event_message("refused", t=111.0, height=40, seat=4, why=EVIL),
        event_message("warning", t=120.0, message=f"a node says: {EVIL}"),
        event_message("warning", t=125.0, message=f"a node says: {EVIL}"),
        event_message("dropped", t=126.0, seats=[3], height=39),
        Line(127.0, f"UserWarning: {EVIL}"),
        event_message("error", t=128.0, message="the coordinator has not answered for ten minutes"),
    ]


def server() -> list[MESSAGES]:
    """Return a server's messages. Two of its members are connected."""
    status = where()
    here = frozenset(member.signer for member in status.members[:2])
    return [
        Facts(
            "Network",
            {"address": "0.0.0.0:20000", "connected": "2 members", "strangers": "0 connections"},
        ),
        Line(1.0, "run demo is training: epoch 2, step 41 of 120"),
        StatusMessage(status, here),
    ]


def screen_of(messages: list[MESSAGES], role: Role = "member", leave: Any = lambda: None) -> RunApp:
    """Return a screen that shows these messages at a fixed time."""
    board = Board(role, "demo", 1 if role == "member" else None)
    for message in messages:
        board.take(message)
    screen = RunApp(board, lambda: NOW, leave)
    screen.animation_level = "none"  # the line under the tabs would move for 0.3 seconds
    return screen
