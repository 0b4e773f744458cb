"""Tests of `set-paused`: it predicts when a run pauses, and reads it once before it warns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.cli.connection import Cluster
from aftermath.cli.run_control import _pause_text, _warn_of_kept_seat
from aftermath.coordinator.ports import View
from aftermath.rules.state import ExitReason, RunState
from aftermath.ui.run_follower import RunFollower
from programs.harness import World
from programs.scenario import Scenario
from rules import builders
from server.in_process_server import RUN, Visitor, serving


def view_of(run: Scenario) -> View:
    return View(run.run, run.members, run.model)


@pytest.mark.parametrize("overlap", [0, 1])
def test_pause_time_excludes_rest_of_epoch(overlap: int) -> None:
    run = Scenario(World()).start(rounds_per_epoch=5, overlap=overlap)
    for index in range(3):
        run.join(index).ok()
    assert _pause_text(view_of(run)) == ""
    for seconds in (6, 31):
        run.world.advance(seconds)
        run.tick().ok()
    assert run.run.state is RunState.ROUND_TRAIN
    run.owner("set_paused", True).ok()
    assert _pause_text(view_of(run)) == " and will pause after this round and cooldown"
    run.finish_rounds()
    assert (run.run.state, run.run.exit_reason, run.run.trained_steps) == (
        RunState.COOLDOWN,
        ExitReason.PAUSE,
        1,
    )
    assert _pause_text(view_of(run)) == " and will pause after it"
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.PAUSED
    assert _pause_text(view_of(run)) == ""


def test_pause_names_time_until_which_members_wait() -> None:
    """The last member may have kept its seat when it was stopped."""
    run = builders.run(
        RunState.ROUND_TRAIN,
        step=7,
        start_step=1,
        rounds=(builders.header(0b100),),
        pending_pause=True,
        state_started_at=1_795_000_000,
    )
    members = builders.members({2: builders.seat(2)})
    text = _pause_text(View(run, members, builders.model(checkpoint_step=1)))
    assert text.startswith(" and will pause after this round and cooldown; if wallet ")
    assert ", the last member of epoch 0, is away, other members wait for it until " in text
    assert re.search(r"until 2026-11-\d\d \d\d:\d\d UTC$", text)


async def test_warning_of_kept_seat_reads_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = CoordinatorClient.snapshot
    reads = 0

    async def counted(coordinator: CoordinatorClient, *arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await snapshot(coordinator, *arguments, **options)

    monkeypatch.setattr(CoordinatorClient, "snapshot", counted)
    async with serving(init_min_clients=1, min_clients=1) as server, Visitor(server) as visitor:
        await visitor.join()
        coordinator = CoordinatorClient(visitor.pool)
        assert (await RunFollower(coordinator, RUN).now()).is_stalled
        reads = 0
        cluster = Cluster(visitor.pool, coordinator, Authorizer(visitor.pool))
        await _warn_of_kept_seat(cluster, RUN)
    assert reads == 1
