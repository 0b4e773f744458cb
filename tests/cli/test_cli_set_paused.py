"""Tests of `set-paused` on a run that trains: it predicts when the run pauses."""

from __future__ import annotations

import pytest

from aftermath.cli.run_control import _pause_text
from aftermath.rules.state import ExitReason, RunState
from programs.harness import World
from programs.scenario import Scenario


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
