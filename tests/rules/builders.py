"""Build account views for tests: everything is zero or empty unless the test sets it."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from aftermath.chain.views import VERSION
from aftermath.coordinator.ports import View
from aftermath.rules import bitmap
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Checkpoint, LrSchedule, Metadata, Model
from aftermath.rules.optimizer import NoOptimizer
from aftermath.rules.run import Config, Round, Run
from aftermath.rules.state import (
    CheckpointKind,
    EstablishedOnly,
    ExitReason,
    MemberState,
    ModelSource,
    RunState,
    ScheduleKind,
)
from rules import program_rules

IDLE_SEAT = Seat(
    signer=bytes(32),
    p2p=bytes(32),
    tier=0,
    state=MemberState.IDLE,
    pending=False,
    removed=False,
    barred=False,
    used=False,
    weight=1,
    declared=1,
    last_epoch=0,
    exited_height=0,
    points=0,
    slashed=0,
)


def config(**overrides: int) -> Config:
    values = {field.name: 0 for field in fields(Config)}
    return Config(**values | {"overlap": 1} | overrides)


def header(roster: int, **overrides: Any) -> Round:
    clients = roster.bit_count()
    values: dict[str, Any] = {field.name: 0 for field in fields(Round)} | {"redo": ()}
    values |= {
        "roster": roster,
        "began": roster,
        "clients": clients,
        "elected": program_rules.elected_count(0, clients),
        "established": EstablishedOnly.NOTHING,
    }
    return Round(**(values | overrides))


def seat(index: int, **overrides: Any) -> Seat:
    values: dict[str, Any] = {field.name: getattr(IDLE_SEAT, field.name) for field in fields(Seat)}
    values |= {"signer": index.to_bytes(32, "big"), "used": True, "state": MemberState.HEALTHY}
    return Seat(**(values | overrides))


def members(seats: dict[int, Seat], **overrides: Any) -> Members:
    """Return members with these seats. By default they have delivered everything that was
    judged.
    """
    healthy = bitmap.from_seats(
        index for index, one in seats.items() if one.state is MemberState.HEALTHY
    )
    values: dict[str, Any] = {
        "epoch": 0,
        "forfeited": 0,
        "judged": 0,
        "delivered": (0,) * bitmap.MAX_MEMBERS,
    }
    values |= {
        "shown": (0,) * bitmap.MAX_MEMBERS,
        "proven": bitmap.from_seats(seats),
        "established": 0,
        "judges": 0,
        "healthy": healthy,
    }
    values |= {"seats": tuple(seats.get(index, IDLE_SEAT) for index in range(bitmap.MAX_MEMBERS))}
    return Members(**(values | overrides))


def run(state: RunState, *, rounds: tuple[Round, ...] = (), **overrides: Any) -> Run:
    blank = header(0)
    values: dict[str, Any] = {field.name: 0 for field in fields(Run)}
    values |= {
        "version": VERSION,
        "state": state,
        "pending_pause": False,
        "cold_start": False,
        "model_source": ModelSource.CHECKPOINT,
        "exit_reason": ExitReason.NONE,
        "draining": 0,
        "levels": 3,
        "run_id": "test",
        "main_authority": bytes(32),
        "join_authority": bytes(32),
        "config": config(),
        "rounds": (*rounds, blank, blank, blank, blank)[:4],
        "level_hashes": (bytes(32),) * 3,
    }
    return Run(**(values | overrides))


def schedule(kind: ScheduleKind, **overrides: Any) -> LrSchedule:
    values: dict[str, Any] = {field.name: 0 for field in fields(LrSchedule)}
    return LrSchedule(**(values | {"kind": kind, "base_lr": 4e-4} | overrides))


def model(**overrides: Any) -> Model:
    """Return a model of three tiers whose checkpoint is a directory. All other fields are empty."""
    values: dict[str, Any] = {
        "metadata": Metadata("", "", 0, 0),
        "client_version": "",
        "architecture": "HfLlama",
        "data_type": 0,
        "max_seq_len": 8,
        "cold_start_warmup_steps": 0,
        "checkpoint": Checkpoint(CheckpointKind.LOCAL, "/nowhere", ""),
        "checkpoint_step": 0,
        "checkpoint_data_index": 0,
        "earlier": (),
        "checkpoint_hashes": (bytes(32),) * 3,
        "lr_schedule": schedule(ScheduleKind.CONSTANT),
        "optimizer": NoOptimizer(),
        "schema_hash": bytes(32),
        "spec_hash": bytes([2]) * 32,
        "spec_error": "",
        "tiers": 3,
        "tier_widths": (4, 2, 1),
    }
    blank = {field.name: None for field in fields(Model)}
    return Model(**(blank | values | overrides))


def view(run: Run, members_: Members | None = None, model_: Model | None = None) -> View:
    """Return a run, by default without members and with an empty model."""
    return View(
        run,
        members_ if members_ is not None else members({}),
        model_ if model_ is not None else model(),
    )
