"""Test which steps and levels are at risk when members leave an epoch."""

from __future__ import annotations

import pytest

from aftermath.rules.contents import levels_going_back, steps_at_risk
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource, RunState
from rules import builders

TIERS = (0, 0, 2)


def members(*healthy: int) -> Members:
    """Return members of the tiers in `TIERS`, of which only some have not left."""
    seats = {
        index: builders.seat(
            index,
            tier=tier,
            state=MemberState.HEALTHY if index in healthy else MemberState.WITHDRAWN,
        )
        for index, tier in enumerate(TIERS)
    }
    return builders.members(seats)


def run(state: RunState = RunState.ROUND_TRAIN, **given: object) -> Run:
    fields = {"step": 12, "start_step": 9, "began": 0b111, "model_source": ModelSource.PEERS}
    return builders.run(state, **(fields | given))


@pytest.mark.parametrize(
    ("healthy", "levels"),
    [((0, 1, 2), []), ((1, 2), []), ((2,), [0, 1]), ((), [])],
)
def test_levels_whose_holders_left_go_back(healthy: tuple[int, ...], levels: list[int]) -> None:
    model = builders.model(checkpoint_step=6)
    assert levels_going_back(run(), members(*healthy), model) == levels
    saved = builders.model(checkpoint_step=12)
    assert levels_going_back(run(), members(*healthy), saved) == []


def test_level_that_nobody_began_with_does_not_go_back() -> None:
    model = builders.model(checkpoint_step=6)
    assert levels_going_back(run(began=0b100), members(2), model) == []


def test_levels_lost_at_end_of_epoch_go_back() -> None:
    model = builders.model(checkpoint_step=6)
    waiting = run(RunState.WAITING_FOR_MEMBERS, levels_lost=0b011)
    assert levels_going_back(waiting, members(2), model) == [0, 1]
    finished = run(RunState.FINISHED, levels_lost=0b011)
    assert levels_going_back(finished, members(2), model) == []


def test_steps_before_epoch_from_checkpoint_are_not_at_risk() -> None:
    model = builders.model(checkpoint_step=6)
    assert steps_at_risk(run(), model) == 6
    assert steps_at_risk(run(model_source=ModelSource.CHECKPOINT), model) == 3
    newer = builders.model(checkpoint_step=11)
    assert steps_at_risk(run(model_source=ModelSource.CHECKPOINT), newer) == 1
