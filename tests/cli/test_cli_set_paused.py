"""Tests of `set-paused` on a run that trains: it predicts when the run pauses."""

from __future__ import annotations

import re

import pytest

from aftermath.cli.run_control import _pause_text
from aftermath.coordinator.ports import View
from aftermath.rules.state import ExitReason, RunState
from programs.harness import World
from programs.scenario import Scenario
from rules import builders


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
