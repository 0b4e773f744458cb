"""Test what a run's status says about steps and levels that may be lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aftermath.events.status import RunStatus, checkpoint_of, facts_of
from aftermath.rules.model import Checkpoint
from aftermath.rules.state import CheckpointKind, ExitReason, MemberState, ModelSource, RunState
from events.test_status import at
from rules import builders


def test_checkpoint_names_later_steps_that_are_not_lost_yet() -> None:
    began = {"began": 0b111, "start_step": 10, "step": 13, "levels": 3}
    model = builders.model(checkpoint_step=7, checkpoint=Checkpoint(CheckpointKind.LOCAL, "/c", ""))
    later = at(RunState.ROUND_TRAIN, model=model, model_source=ModelSource.PEERS, **began)
    assert "; 6 later steps are in no recorded checkpoint" in checkpoint_of(later)
    back = at(RunState.ROUND_TRAIN, model=model, model_source=ModelSource.CHECKPOINT, **began)
    assert "; 3 later steps are in no recorded checkpoint" in checkpoint_of(back)
    saved = at(RunState.ROUND_TRAIN, model=replace(model, checkpoint_step=13), **began)
    assert "later" not in checkpoint_of(saved)
    lost = began | {"step": 10, "model_source": ModelSource.CHECKPOINT}
    assert checkpoint_of(at(RunState.WARMUP, **lost)) == "the initial model, of step 0"


def test_status_names_levels_whose_last_holder_left() -> None:
    seats = {0: builders.seat(0, state=MemberState.WITHDRAWN), 1: builders.seat(1, tier=2)}
    found = at(
        RunState.ROUND_TRAIN,
        members_=builders.members(seats),
        model=builders.model(checkpoint_step=7),
        began=0b11,
        start_step=7,
        step=10,
        levels=3,
    )
    assert facts_of(found)["levels"] == (
        "levels 0, 1 of the model go back to the checkpoint of step 6 in the next epoch: the "
        "members with the newest steps have left. Up to 3 steps are lost"
    )
    assert "levels" not in facts_of(at(RunState.ROUND_TRAIN))


def test_status_counts_holders_that_are_left() -> None:
    seats = {seat: builders.seat(seat, state=MemberState.WITHDRAWN) for seat in (0, 1)}
    found = at(
        RunState.ROUND_TRAIN,
        members_=builders.members({**seats, 2: builders.seat(2)}),
        began=0b111,
        step=10,
    )
    assert facts_of(found)["levels"] == (
        "levels 0, 1, 2 of the model go back to the initial model in the next epoch: "
        "only 1 of 3 holders are left. Up to 9 steps are lost"
    )
    assert "; 9 later steps are lost, and" in checkpoint_of(found), "one member cannot attest them"
    assert "the run continues at step" not in checkpoint_of(found), "its epoch may be undone"


@pytest.mark.parametrize(
    ("left_in_rounds", "left_in_cooldown", "why"),
    [
        (0, 5, "the members with the newest steps have left"),
        (3, 1, "only 1 of 5 holders are left"),
    ],
)
def test_status_counts_no_holder_that_left_in_cooldown(
    left_in_rounds: int, left_in_cooldown: int, why: str
) -> None:
    """Members that left in the cooldown may have attested before."""
    seats = {seat: builders.seat(seat) for seat in range(5)}
    for seat in range(left_in_rounds + left_in_cooldown):
        exited = 0 if seat < left_in_rounds else 1
        seats[seat] = replace(seats[seat], state=MemberState.WITHDRAWN, exited_height=exited)
    cooling = at(
        RunState.COOLDOWN,
        members_=builders.members(seats),
        round_={"began": 0b11111},
        began=0b11111,
        step=10,
    )
    assert f": {why}. Up to 9 steps are lost" in facts_of(cooling)["levels"]


def test_status_of_complete_epoch_says_if_its_steps_are_lost() -> None:
    complete = {"step": 10, "exit_reason": ExitReason.ROUNDS_PER_EPOCH}
    lost = at(RunState.WAITING_FOR_MEMBERS, **complete)
    assert "(the last epoch is complete, but its steps are lost)" in lost.waits[0]
    cut_short = complete | {"exit_reason": ExitReason.QUORUM_MISSING}
    seats = {0: builders.seat(0, state=MemberState.IDLE, pending=True)}
    ended = at(RunState.WAITING_FOR_MEMBERS, members_=builders.members(seats), **cut_short)
    assert "no quorum of its witnesses answered, and its steps are lost)" in ended.waits[0]
    kept = at(RunState.WAITING_FOR_MEMBERS, model_source=ModelSource.PEERS, **complete)
    assert "(the last epoch is complete)" in kept.waits[0]


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_MEMBERS, RunState.PAUSED])
def test_status_keeps_loss_until_next_epoch(state: RunState) -> None:
    facts = facts_of(at(state, step=10))
    assert facts["checkpoint"] == (
        "the initial model, of step 0; 9 later steps are lost, and the next epoch begins without "
        "them (a member's --checkpoint-dir may have a copy); the run continues at step 9 with the "
        "initial model; rewind --to-step 0 trains the lost steps again"
    )
    model = builders.model(checkpoint_step=7, checkpoint=Checkpoint(CheckpointKind.LOCAL, "/c", ""))
    back = checkpoint_of(at(state, step=10, model=model, has_tick=False))
    assert "; 3 later steps are lost, and" in back
    assert back.endswith("; the run continues at step 9 with the model of step 6")
    kept = at(state, step=10, model=model, model_source=ModelSource.PEERS)
    assert "3 later steps are in no recorded checkpoint" in checkpoint_of(kept)
    begun = at(RunState.WARMUP, step=10, start_step=10, model=model)
    assert "later" not in checkpoint_of(begun)


def test_status_of_epoch_that_all_left_names_loss() -> None:
    seats = {seat: builders.seat(seat, state=MemberState.WITHDRAWN) for seat in range(3)}
    left = at(RunState.ROUND_TRAIN, members_=builders.members(seats), began=0b111, step=10)
    assert "9 later steps are lost" in checkpoint_of(left)


def _ended(state: RunState, *, waits: bool, finishers: int = 0b1) -> RunStatus:
    """Return the status after an epoch whose newest levels are in no checkpoint."""
    holder = builders.seat(0, state=MemberState.IDLE, pending=waits)
    newcomer = builders.seat(1, state=MemberState.IDLE, pending=state is not RunState.PAUSED)
    model = builders.model(checkpoint_step=7, checkpoint=Checkpoint(CheckpointKind.LOCAL, "/c", ""))
    facts: dict[str, Any] = {
        "model_source": ModelSource.PEERS,
        "finishers": finishers,
        "levels_attested": 0b111,
        "level_hashes": (bytes([1]) * 32,) * 3,
        "exit_reason": ExitReason.ROUNDS_PER_EPOCH,
    }
    seats = builders.members({0: holder, 1: newcomer})
    return at(state, step=10, members_=seats, model=model, **facts)


def test_steps_are_lost_unless_absent_holder_still_runs() -> None:
    waiting = _ended(RunState.WAITING_FOR_MEMBERS, waits=False)
    assert checkpoint_of(waiting) == (
        "step 6 at /c, on the machine that saved it; 3 later steps are lost unless an absent member "
        "that has them is still running; a member's --checkpoint-dir may have a copy"
    )
    assert "if it was stopped, its model is lost, and the wait ends when" in waiting.waits[1]
    paused = _ended(RunState.PAUSED, waits=False)
    assert "is still running (a pause hides whether one is)" in checkpoint_of(paused)
    present = _ended(RunState.WAITING_FOR_MEMBERS, waits=True)
    assert "3 later steps are in no recorded checkpoint" in checkpoint_of(present)
    assert len(present.waits) == 1


@pytest.mark.parametrize("state", [RunState.WAITING_FOR_MEMBERS, RunState.PAUSED])
def test_steps_are_lost_if_all_holders_came_back_without(state: RunState) -> None:
    """A member that joins without a replica is no longer a finisher."""
    status = _ended(state, waits=False, finishers=0)
    assert "; 3 later steps are lost, and the next epoch begins without" in checkpoint_of(status)
    assert len(status.waits) == 1
