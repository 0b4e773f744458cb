"""Two members are stopped one after the other in an epoch, and start again in the other order."""

from __future__ import annotations

import pytest

from aftermath.rules.state import RunState
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.event_log import applied_sequences
from e2e.run_inputs import RunInputs

_EPOCH = 40  # rounds: more than are trained before both are stopped
_STEPS = 12
_TIMES = {"max_round_train_time": 6, "round_witness_time": 2, "cooldown_time": 10}


def _start(cluster: TrainingCluster, member: ClusterMember) -> None:
    """Start a member with a checkpoint directory of its own, as on another machine."""
    cluster.start(member, "--checkpoint-dir", cluster.place / f"checkpoints-{member.name}")


def _warnings(member: ClusterMember, text: str) -> list[str]:
    messages = [event["message"] for event in member.event_log.events_of("warning")]
    return [message for message in messages if text in message]


@pytest.mark.slow
# members do not depend on the engine
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_first_member_back_waits_for_saved_steps_of_last(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    rules = {
        "rounds_per_epoch": _EPOCH,
        "total_steps": _STEPS,
        "min_clients": 1,
        "init_min_clients": 2,
        "min_round_time": 1,
        "waiting_for_members_extra_time": 3,
    }
    cluster.configure(run_inputs.config(cluster.place, **rules, **_TIMES))
    first = cluster.add_member(0)
    last = cluster.add_member(0)
    for member in (first, last):
        _start(cluster, member)
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    cluster.until_trains(last, 0, results=2)
    first.process.interrupt(60)
    if _warnings(first, "the others will drop it"):
        # On a busy machine, a stop has too little time to leave. Then the other member loses its
        # quorum, and saves what both have trained.
        cluster.until_run(lambda run: run.epoch == 1, "the epoch ends without the first member")
        cluster.until(lambda: last.event_log.events_of("checkpoint"), "the last member saves it")
        return
    trained = cluster.run.step
    cluster.until_run(lambda run: run.step > trained, "the last member trains alone")
    last.process.interrupt(60)
    (stopped,) = last.event_log.events_of("stopped")
    assert stopped["continues"]

    _start(cluster, first)
    text = f"the run waits for wallet {last.wallet}, the last member of epoch 0"
    cluster.until(
        lambda: _warnings(first, text), "the first member names the one that it waits for"
    )
    assert cluster.run.epoch == 0

    _start(cluster, last)
    back = cluster.until_run(
        lambda run: run.epoch == 1 and run.state.training, "they train the next epoch"
    )
    # The last round of epoch 0 may close only when the last member is back.
    assert back.start_step == stopped["step"] + 1
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in (first, last)] == [0, 0]
    assert len(_warnings(first, text)) == 1
    assert not any(_warnings(member, "only a copy") for member in (first, last))
    applied = applied_sequences(last.event_log)
    # The round in which the first member left may be void. Its sequences wait to be trained again.
    assert len(applied) == cluster.run.data_index - cluster.run.backlog
    assert cluster.run.lost_sequences == 0
    assert cluster.compare_replicas() > _STEPS
