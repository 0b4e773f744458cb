"""Tests of a member with two ranks in a run with members of one rank: equal replicas, a killed
rank, and a rank without memory.
"""

from __future__ import annotations

import json
import resource

import psutil
import pytest

from aftermath.rules.state import RunState
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.event_log import applied_sequences
from e2e.processes import command_line
from e2e.run_inputs import RunInputs

ENDING_SECONDS = 60.0  # maximum seconds until a member or rank has ended with the other
ROUNDS = 6
EPOCHS = 2
pytestmark = pytest.mark.slow
EMBEDDED = pytest.mark.parametrize("engine", ["embedded"], indirect=True)


def ranks_of(member: ClusterMember) -> list[psutil.Process]:
    """Return the processes of the member's other ranks."""
    children = psutil.Process(member.process.pid).children()
    return [child for child in children if "aftermath.parallel.worker" in command_line(child)]


@EMBEDDED
def test_two_ranks_equal_one_and_killed_rank_ends_member(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    # so that every member has a share
    batch = {"global_batch_size_start": 48, "global_batch_size_end": 48}
    cluster.configure(
        run_inputs.config(
            cluster.place, rounds_per_epoch=ROUNDS, total_steps=EPOCHS * ROUNDS, **batch
        )
    )
    cluster.starts_commands = True  # they start processes themselves
    one, two, three = members = [cluster.add_member(tier) for tier in (0, 0, 1)]
    for member, options in zip(
        members, (["--data-parallelism", "2"], ["--data-parallelism", "2"], []), strict=True
    ):
        cluster.start(member, "--micro-batch-size", "2", *options)
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until(lambda: ranks_of(one) and ranks_of(two), "their other ranks are there")
    [rank] = ranks_of(one)
    cluster.until_run(
        lambda run: run.epoch >= 1 and run.state.training and run.current.height >= 2,
        "the second epoch runs",
    )
    # Levels 2 and 1 are on three members, level 0 on two; after every step, and once more per
    # cooldown.
    assert cluster.compare_replicas() >= 5 * (ROUNDS + 1)
    for member in members:
        assert len(applied_sequences(member.event_log)) >= 48 * ROUNDS
        assert len(member.event_log.events_of("trained")) > 1

    two.process.expected = False
    ranks_of(two)[0].kill()
    assert two.process.wait(ENDING_SECONDS) == 1
    assert "error: rank 1 of this member, on cpu, ended by SIGKILL" in two.process.output
    assert "Traceback" not in two.process.output
    events = [json.loads(line) for line in two.process.output.splitlines() if line.startswith("{")]
    assert [event["kind"] for event in events if event["kind"] in ("left", "error")] == [
        "left",
        "error",
    ]
    assert not cluster.in_epoch(two)

    run = cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    others = (one, three)
    assert [member.process.wait() for member in others] == [0, 0]
    rank.wait(ENDING_SECONDS)  # the rank ends with its member
    assert cluster.compare_replicas() > 5 * (ROUNDS + 1)
    assert run.lost_sequences == 0
    for member in others:
        assert member.event_log.events_of("applied")[-1]["step"] == EPOCHS * ROUNDS
        assert cluster.all_trained(member, run.data_index - run.backlog)


@EMBEDDED
def test_killed_member_ends_its_ranks(cluster: TrainingCluster, run_inputs: RunInputs) -> None:
    cluster.configure(
        run_inputs.config(cluster.place, init_min_clients=1, min_clients=1, total_steps=1000)
    )
    member = cluster.add_member(0)
    cluster.starts_commands = True
    cluster.start(member, "--tensor-parallelism", "2")
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until_trains(member, 0)
    ranks = ranks_of(member)
    assert len(ranks) == 1
    member.process.expected = False
    psutil.Process(member.process.pid).kill()
    assert psutil.wait_procs(ranks, ENDING_SECONDS)[1] == []


@EMBEDDED
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits other processes")
def test_rank_out_of_memory_ends_member(cluster: TrainingCluster, run_inputs: RunInputs) -> None:
    cluster.configure(
        run_inputs.config(cluster.place, init_min_clients=1, min_clients=1, total_steps=1000)
    )
    member = cluster.add_member(0)
    cluster.starts_commands = True
    cluster.start(member, "--data-parallelism", "2")
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until_trains(member, 0)
    [rank] = ranks_of(member)
    member.process.expected = False
    # The rank has more already, so its next request for memory fails.
    resource.prlimit(rank.pid, resource.RLIMIT_AS, (1 << 20, -1))
    assert member.process.wait(ENDING_SECONDS) == 1
    output = member.process.output
    assert "error: rank 1 of this member, on cpu, has too little memory" in output
    assert "fix: Pass a lower --micro-batch-size" in output
    assert "Traceback" not in output
