"""Tests of `set-paused`: it predicts when a run pauses, and reads it once before it warns."""

from __future__ import annotations

from typing import Any

import pytest

from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.cli.connection import Cluster
from aftermath.cli.run_control import _pause_text, _warn_of_kept_seat
from aftermath.rules.state import ExitReason, RunState
from aftermath.ui.run_follower import RunFollower
from programs.harness import World
from programs.scenario import Scenario
from server.in_process_server import RUN, Visitor, serving


@pytest.mark.parametrize("overlap", [0, 1])
def test_pause_time_excludes_rest_of_epoch(overlap: int) -> None:
    run = Scenario(World()).start(rounds_per_epoch=5, overlap=overlap)
    for index in range(3):
        run.join(index).ok()
    assert _pause_text(run.run) == ""
    for seconds in (6, 31):
        run.world.advance(seconds)
        run.tick().ok()
    assert run.run.state is RunState.ROUND_TRAIN
    run.owner("set_paused", True).ok()
    assert _pause_text(run.run) == " and will pause after this round and cooldown"
    run.finish_rounds()
    assert (run.run.state, run.run.exit_reason, run.run.trained_steps) == (
        RunState.COOLDOWN,
        ExitReason.PAUSE,
        1,
    )
    assert _pause_text(run.run) == " and will pause after it"
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.PAUSED
    assert _pause_text(run.run) == ""


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
