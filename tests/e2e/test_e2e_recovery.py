"""Tests of a run whose members are all killed at once."""

from __future__ import annotations

import pytest

from aftermath.model.saved_checkpoints import saved_steps
from aftermath.rules.state import RunState
from e2e.cluster import TrainingCluster
from e2e.event_log import applied_sequences
from e2e.run_inputs import RunInputs

STEPS = 12


@pytest.mark.slow
# members do not depend on the engine
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_run_with_all_members_killed_resumes_from_checkpoint(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    rules = {
        "rounds_per_epoch": STEPS // 2,
        "total_steps": STEPS,
        "waiting_for_members_extra_time": 5,
    }
    cluster.configure(run_inputs.config(cluster.place, **rules))
    members = cluster.start_three()
    between = cluster.until_run(
        lambda run: run.epoch >= 1 and run.state is RunState.WAITING_FOR_MEMBERS,
        "an epoch has ended",
    )
    cluster.kill_all()
    dead = cluster.run
    model = cluster.model
    assert dead.state is RunState.WAITING_FOR_MEMBERS, "they died between two epochs"
    assert model.checkpoint_step == dead.attested_step == dead.step == between.step
    assert model.checkpoint_hashes == dead.level_hashes
    assert saved_steps(cluster.place / "checkpoints", cluster.run_id)

    # The killed members are signed up for the next epoch. It must not begin before all are back,
    # however long they take to start.
    cluster.command("set-paused", "pause", "--run-id", cluster.run_id)
    marks = [member.event_log.position() for member in members]
    for member in members:
        cluster.start(member)
    for member, mark in zip(members, marks, strict=True):
        cluster.until(
            lambda member=member, mark=mark: member.event_log.events_of(
                "state", mark, state="PAUSED"
            ),
            f"{member.name} is back",
        )
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    back = cluster.until_run(lambda run: run.state.training, "they train again")
    assert (back.start_step, back.level_hashes) == (dead.step, model.checkpoint_hashes)
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in members] == [0, 0, 0]
    # The last one may sign up when the epoch has begun, and sit it out.
    first = [
        event
        for member, mark in zip(members, marks, strict=True)
        for event in member.event_log.events_of("model", mark)
    ]
    sources = [event["source"] for event in first if event["step"] == dead.trained_steps]
    assert sources in (["the checkpoint"] * 2, ["the checkpoint"] * 3)
    steps = list(range(1, STEPS + 1))
    whole = [
        member
        for member in members
        if [event["step"] for event in member.event_log.events_of("applied")] == steps
    ]
    assert len(whole) >= 2
    assert applied_sequences(whole[0].event_log) == list(range(cluster.run.data_index))
    assert cluster.run.lost_sequences == 0
    assert cluster.compare_replicas() > 3 * STEPS // 2
