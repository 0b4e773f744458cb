"""Account views for tests: everything zero or empty unless the test says otherwise."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from aftermath.run import bitmap, committee
from aftermath.run.accounts import Config, LrSchedule, Members, Round, Run, Slot
from aftermath.run.state import ExitReason, MemberState, ModelSource, RunState, ScheduleKind
from aftermath.run.views import VERSION

IDLE_SLOT = Slot(
    signer=bytes(32),
    p2p=bytes(32),
    tier=0,
    state=MemberState.IDLE,
    pending=False,
    used=False,
    weight=1,
    last_epoch=0,
    exited_height=0,
    points=0,
    slashed=0,
)


def config(**given: int) -> Config:
    values = {field.name: 0 for field in fields(Config)}
    return Config(**values | {"overlap": 1} | given)


def header(roster: int, **given: int) -> Round:
    clients = roster.bit_count()
    values = {field.name: 0 for field in fields(Round)}
    values |= {"roster": roster, "clients": clients, "elected": committee.elected_count(0, clients)}
    return Round(**(values | given))


def slot(index: int, **given: Any) -> Slot:
    values: dict[str, Any] = {field.name: getattr(IDLE_SLOT, field.name) for field in fields(Slot)}
    values |= {"signer": index.to_bytes(32, "big"), "used": True, "state": MemberState.HEALTHY}
    return Slot(**(values | given))


def members(slots: dict[int, Slot]) -> Members:
    return Members(0, 0, tuple(slots.get(index, IDLE_SLOT) for index in range(bitmap.MAX_MEMBERS)))


def run(state: RunState, *, rounds: tuple[Round, ...] = (), **given: Any) -> Run:
    blank = header(0)
    values: dict[str, Any] = {field.name: 0 for field in fields(Run)}
    values |= {
        "version": VERSION,
        "state": state,
        "pending_pause": False,
        "cold_start": False,
        "model_source": ModelSource.CHECKPOINT,
        "exit_reason": ExitReason.NONE,
        "draining": False,
        "levels": 3,
        "run_id": "test",
        "main_authority": bytes(32),
        "join_authority": bytes(32),
        "config": config(),
        "backlog": (),
        "rounds": (*rounds, blank, blank, blank, blank)[:4],
        "level_hashes": (bytes(32),) * 3,
    }
    return Run(**(values | given))


def schedule(kind: ScheduleKind, **given: Any) -> LrSchedule:
    values: dict[str, Any] = {field.name: 0 for field in fields(LrSchedule)}
    return LrSchedule(**(values | {"kind": kind, "base_lr": 4e-4} | given))
