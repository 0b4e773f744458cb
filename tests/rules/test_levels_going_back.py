"""Test which steps and levels are at risk when members leave an epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aftermath.rules.contents import steps_at_risk
from aftermath.rules.departures import (
    LostLevel,
    levels_going_back,
    levels_lost,
    levels_lost_with,
    lost_steps,
)
from aftermath.rules.members import Members
from aftermath.rules.model import Model
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


def run(state: RunState = RunState.ROUND_TRAIN, **given: Any) -> Run:
    fields: dict[str, Any] = {
        "step": 12,
        "start_step": 9,
        "began": 0b111,
        "model_source": ModelSource.PEERS,
    }
    fields |= given
    return builders.run(state, rounds=(builders.header(fields["began"]),), **fields)


def going_back(run: Run, members: Members, model: Model) -> list[int]:
    return [one.level for one in levels_going_back(run, members, model)]


@pytest.mark.parametrize(
    ("healthy", "levels"),
    [
        ((0, 1, 2), []),
        ((1, 2), []),
        ((0,), [2]),
        ((2,), [0, 1, 2]),
        ((), [0, 1, 2]),
    ],
)
def test_levels_that_half_of_holders_left_go_back(
    healthy: tuple[int, ...], levels: list[int]
) -> None:
    """With one of two holders a level is attested, with one of three it is not."""
    model = builders.model(checkpoint_step=6)
    assert going_back(run(), members(*healthy), model) == levels
    saved = builders.model(checkpoint_step=12)
    assert going_back(run(), members(*healthy), saved) == []


def test_level_that_nobody_began_with_does_not_go_back() -> None:
    model = builders.model(checkpoint_step=6)
    assert going_back(run(began=0b100), members(2), model) == []


def test_levels_lost_at_end_of_epoch_go_back() -> None:
    model = builders.model(checkpoint_step=6)
    waiting = run(RunState.WAITING_FOR_MEMBERS, levels_lost=0b011)
    assert going_back(waiting, members(2), model) == [0, 1]
    paused = run(RunState.PAUSED, levels_lost=0b011)
    assert going_back(paused, members(2), model) == [0, 1]
    finished = run(RunState.FINISHED, levels_lost=0b011)
    assert going_back(finished, members(2), model) == []


def test_steps_before_epoch_from_checkpoint_are_not_at_risk() -> None:
    model = builders.model(checkpoint_step=6)
    assert steps_at_risk(run(), model) == 6
    assert steps_at_risk(run(model_source=ModelSource.CHECKPOINT), model) == 3
    newer = builders.model(checkpoint_step=11)
    assert steps_at_risk(run(model_source=ModelSource.CHECKPOINT), newer) == 1


def test_second_of_three_holders_loses_level_by_leaving() -> None:
    table = members(1, 2)
    reachable = {seat.p2p for seat in table.seats}
    assert levels_lost_with(run(), table, 2, reachable) == [LostLevel(2, 1, 3)]
    everyone = members(0, 1, 2)
    assert levels_lost_with(run(), everyone, 2, reachable) == []


def test_member_without_deliveries_leaves_no_place_in_committee() -> None:
    """It delivered in none of two rounds, so the committee is the two others."""
    table = builders.members({seat: builders.seat(seat) for seat in range(3)}, judged=2)
    reachable = {seat.p2p for seat in table.seats}
    table = replace(table, proven=0b110, delivered=(0, 2, 2, *table.delivered[3:]))
    gone = replace(table, healthy=0b110, seats=(_LEFT, *table.seats[1:]))
    assert levels_lost_with(run(), gone, 1, reachable) == []
    voted = replace(gone, proven=0b111)
    assert [one.level for one in levels_lost_with(run(), voted, 1, reachable)] == [0, 1, 2]


_LEFT = builders.seat(0, state=MemberState.WITHDRAWN, exited_height=1)


def test_newcomer_needs_more_than_half_of_committee() -> None:
    table = builders.members(
        {0: _LEFT, 1: builders.seat(1)}, established=0b01, judges=0b01, proven=0b11
    )
    later = (builders.header(0b11, height=2), *run().rounds[1:])
    known = replace(run(began=0b11, levels_established=0b111), rounds=later)
    assert [one.level for one in levels_lost(known, table)] == [0, 1, 2]
    assert levels_lost(replace(known, levels_established=0), table) == []


def test_member_that_attested_may_leave_in_cooldown() -> None:
    table = members(1, 2)
    cooling = run(RunState.COOLDOWN)
    reachable = {seat.p2p for seat in table.seats}
    assert levels_lost_with(cooling, table, 2, reachable) == [LostLevel(2, 1, 3)]
    assert levels_lost_with(cooling, table, 2, reachable, has_attested=True) == []
    attested = run(RunState.COOLDOWN, levels_attested=0b111)
    assert levels_lost_with(attested, table, 2, reachable) == []


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_MEMBERS, RunState.PAUSED])
def test_steps_of_epoch_without_attestation_are_lost(state: RunState) -> None:
    model = builders.model(checkpoint_step=6)
    back = run(state, model_source=ModelSource.CHECKPOINT)
    assert lost_steps(back, members(), model) == 6
    assert lost_steps(run(state), members(), model) == 0
    saved = builders.model(checkpoint_step=12)
    assert lost_steps(back, members(), saved) == 0


def test_epoch_without_member_loses_round_that_still_closes() -> None:
    model = builders.model(checkpoint_step=6)
    assert lost_steps(run(), members(), model) == 6
    assert lost_steps(run(), members(0), model) == 0
    assert lost_steps(run(), members(2), model) == 6, "it cannot attest level 2 alone"
    small = run(began=0b100)
    assert lost_steps(small, members(), model) == 6, "nobody trains the other levels"
    assert lost_steps(small, members(2), model) == 0
    header = builders.header(0b111, height=1, elected=1, attestations=1)
    for batch, lost in ((8, 7), (0, 6)):  # a round that judges one without data makes no step
        judged = builders.header(0b111, batch=batch)
        closing = replace(run(), head=1, rounds=(judged, header, *run().rounds[2:]))
        assert lost_steps(closing, members(), model) == lost
