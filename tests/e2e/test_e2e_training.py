"""Tests of whole trainings: members of tiers 0, 1 and 2 train one model from the first to the last
step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from aftermath.rules.state import CheckpointKind, RunState
from e2e.cluster import TrainingCluster
from e2e.event_log import applied_sequences
from e2e.run_inputs import RunInputs, make_run_inputs

STEPS = 16
EPOCHS = 2


# The first is the end-to-end run of the fast tests.
ENGINES = ["embedded", pytest.param("validator", marks=pytest.mark.slow)]


@pytest.mark.parametrize("engine", ENGINES, indirect=True)
def test_three_tiers_train_two_epochs(cluster: TrainingCluster, run_inputs: RunInputs) -> None:
    rules = {"rounds_per_epoch": STEPS // EPOCHS, "total_steps": STEPS, "overlap": 1}
    cluster.configure(run_inputs.config(cluster.place, **rules))
    members = cluster.start_three()
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in members] == [0, 0, 0]

    # Level 2 is on three members, level 1 on two, level 0 on one; after every step, and once more
    # per cooldown.
    assert cluster.compare_replicas() == 3 * (STEPS + EPOCHS)
    run = cluster.run
    model = cluster.model
    assert run.epoch == EPOCHS
    assert run.lost_sequences == 0
    assert not run.backlog
    for member in members:
        assert applied_sequences(member.event_log) == list(range(run.data_index))
        assert [event["step"] for event in member.event_log.events_of("applied")] == list(
            range(1, STEPS + 1)
        )
        assert {event["run_identity"] for event in member.event_log.events_of("trained")} == {
            run.identity
        }
        losses = [event["loss"] for event in member.event_log.events_of("trained")]
        assert losses[-1] < losses[0] - 0.5
    assert {member.event_log.events_of("joined")[0]["seat"] for member in members} == {0, 1, 2}

    # The checkpoint of every epoch's end is on disk and on chain, with the hashes the members
    # attested.
    assert model.checkpoint.kind is CheckpointKind.LOCAL
    assert model.checkpoint_step == run.attested_step == run.step
    assert model.checkpoint_hashes == run.level_hashes
    assert (Path(model.checkpoint.repo) / "model.safetensors").exists()
    assert str(cluster.place) in model.checkpoint.repo


# tests/model trains these architectures in one process, and tests/evals asks a member between
# rounds, in the other tiers.
@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
@pytest.mark.parametrize("architecture", ["nanogpt", "deepseek"])
def test_other_architectures_with_evaluated_member_train(
    cluster: TrainingCluster, tmp_path: Path, architecture: str
) -> None:
    """Train NanoGPT with all its features, and DeepSeek with experts cut into tiers, without
    overlap.

    A member evaluates the whole model between rounds, and nobody waits for it.
    """
    rules = {"rounds_per_epoch": STEPS // EPOCHS, "total_steps": STEPS, "overlap": 0}
    cluster.configure(make_run_inputs(tmp_path, architecture).config(cluster.place, **rules))
    evaluated_member, *others = members = [cluster.add_member(tier) for tier in (0, 1, 2)]
    cluster.start(evaluated_member, "--eval-tasks", "source-choice", "--eval-task-max-docs", "10")
    for member in others:
        cluster.start(member)
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in members] == [0, 0, 0]

    evaluations = evaluated_member.event_log.events_of("evaluated")
    assert evaluations
    for event in evaluations:
        assert (event["task"], event["metric"], event["docs"]) == ("source-choice", "acc", 10)
        assert event["value"] in [number / 10 for number in range(11)]
    steps = [event["step"] for event in evaluations]
    assert steps == sorted({*steps})
    assert {*steps} <= {*range(STEPS + 1)}, "of weights between the rounds"
    assert not any(member.event_log.events_of("evaluated") for member in others)

    assert cluster.compare_replicas() == 3 * (STEPS + EPOCHS)
    assert cluster.run.lost_sequences == 0
    assert not cluster.run.backlog
    for member in members:
        assert applied_sequences(member.event_log) == list(range(cluster.run.data_index))
        assert [event["step"] for event in member.event_log.events_of("applied")] == list(
            range(1, STEPS + 1)
        )
        # Not every round: a member that was busy during its speed measurement gets few sequences,
        # and in some rounds none.
        losses = [event["loss"] for event in member.event_log.events_of("trained")]
        assert losses[-1] < losses[0] - 0.5
        assert not member.event_log.events_of("warning")
