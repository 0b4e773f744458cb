"""Tests of a run whose members join, leave, crash and return while it trains. Its replicas stay
equal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from xprocess import XProcess

from aftermath.rules.state import MemberState, RunState
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.network import Network
from e2e.run_inputs import RunInputs

ROUNDS = 20  # rounds in an epoch: enough for a member that starts early in it to join the next
DOWN_SECONDS = 10.0
# maximum seconds from Ctrl-C to the end of the process, even on a busy machine
SIGINT_SECONDS = 20.0
ON_EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)
# A whole training runs on the validator in the slow tests (test_e2e_training.py).
ON_VALIDATOR = pytest.param("validator", marks=pytest.mark.nightly)
ONE_ENGINE = pytest.mark.parametrize("engine", [ON_EMBEDDED], indirect=True)
BOTH_ENGINES = pytest.mark.parametrize("engine", [ON_EMBEDDED, ON_VALIDATOR], indirect=True)


@pytest.fixture(scope="module")
def started(
    network: Network,
    xprocess: XProcess,
    run_inputs: RunInputs,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TrainingCluster]:
    """Return a run that never ends, with members of tiers 0, 1 and 2. The tests of this file share
    it.
    """
    cluster = TrainingCluster(network, xprocess, tmp_path_factory.mktemp("cluster"))
    cluster.configure(
        run_inputs.config(cluster.place, rounds_per_epoch=ROUNDS, total_steps=100_000)
    )
    cluster.start_three()
    yield cluster
    cluster.kill_all()


@pytest.fixture
def cluster(started: TrainingCluster) -> Iterator[TrainingCluster]:
    """Return that run once its first three members are healthy and train. Compare all replicas
    afterwards.
    """
    for member in started.members[:3]:
        if member.process.code is not None:
            started.start(member)
    marks = [member.event_log.position() for member in started.members[:3]]
    for member, mark in zip(started.members, marks, strict=False):
        started.until_trains(member, mark)
    yield started
    started.compare_replicas()


@BOTH_ENGINES  # the first test, because it needs members that have seen everything
def test_members_during_chain_outage_keep_running(cluster: TrainingCluster) -> None:
    members = cluster.members[:3]
    before = cluster.until_early_in_an_epoch()
    cluster.network.go_down()
    down_until = time.monotonic() + DOWN_SECONDS
    try:
        while time.monotonic() < down_until:
            assert [member.process.code for member in members] == [None, None, None]
            time.sleep(0.5)
    finally:
        cluster.network.come_back()
    after = cluster.run
    assert after.seq >= before.seq, "what was acknowledged is still there"
    assert after.step >= before.step

    # The outage may make one member late in a round: it is dropped, and applies nothing until the
    # next epoch.
    cluster.until_run(
        lambda run: run.epoch > before.epoch and run.state.training, "the next epoch begins"
    )
    marks = [member.event_log.position() for member in members]
    for member, mark in zip(members, marks, strict=True):
        cluster.until_trains(member, mark, results=3)
    run = cluster.run
    assert run.lost_sequences == 0
    owed = run.data_index
    cluster.until(
        lambda: sum(cluster.all_trained(one, owed) for one in members) >= 2,
        "every sequence is trained",
    )


@ONE_ENGINE
def test_late_joiner_loads_model_and_leaves_on_two_ctrl_c(cluster: TrainingCluster) -> None:
    late = cluster.add_member(1)
    epoch = cluster.until_early_in_an_epoch().epoch
    cluster.start(late)
    joined = cluster.until(lambda: late.event_log.events_of("joined"), "it joins")[0]
    assert joined["epoch"] == epoch
    assert late.event_log.events_of("state")[0]["state"] in {
        state.name for state in RunState if state.training
    }
    cluster.until_trains(late, 0, results=3)
    assert [(event["source"]) for event in late.event_log.events_of("model")] == ["peers"]
    applied = late.event_log.events_of("applied")
    assert applied[0]["epoch"] == epoch + 1
    assert applied[0]["height"] == 0
    leave(cluster, late, twice=True)


def leave(cluster: TrainingCluster, member: ClusterMember, *, twice: bool = False) -> None:
    """Press Ctrl-C: the member leaves the run on chain quickly and exits with 0. The others
    continue.
    """
    cluster.until(lambda: cluster.in_epoch(member), "it is in an epoch")
    if twice:
        member.process.signal_all(signal.SIGINT)
    interrupt(member)
    cluster.until(lambda: has_left(cluster, member), "the chain knows that it left", 20)
    others = [other for other in cluster.members if other.process.code is None]
    for other, mark in [(other, other.event_log.position()) for other in others]:
        cluster.until_trains(other, mark, results=4)


def interrupt(member: ClusterMember) -> None:
    """Press Ctrl-C: the member ends by itself with 0."""
    member.process.interrupt(SIGINT_SECONDS)
    assert member.process.code == 0, member.process.output[-2000:]


def has_left(cluster: TrainingCluster, member: ClusterMember) -> bool:
    """Return whether the member is not in the current epoch (idle: that epoch has ended since) and
    not signed up for the next.
    """
    place = cluster.seat(member)
    assert place is not None
    return not place.pending and place.state in (MemberState.WITHDRAWN, MemberState.IDLE)


@ONE_ENGINE
def test_member_after_ctrl_c_can_rejoin_run(cluster: TrainingCluster) -> None:
    member = cluster.members[2]
    leave(cluster, member)
    mark = member.event_log.position()
    cluster.start(member)
    cluster.until_trains(member, mark)
    assert [event["source"] for event in member.event_log.events_of("model", mark)] == ["peers"]


@ONE_ENGINE
def test_second_process_with_same_wallet_is_refused(cluster: TrainingCluster) -> None:
    member = cluster.members[2]
    mark = member.event_log.position()
    second = cluster.start(member)
    second.expected = False
    member.processes.remove(second)
    assert second.wait() == 1
    assert (
        f"another process on this machine already takes part in run {cluster.run_id} with this wallet"
        in second.output
    )
    cluster.until_trains(member, mark, results=3)


@ONE_ENGINE  # `make demo` tests it on both
def test_killed_member_is_dropped_and_returns(cluster: TrainingCluster) -> None:
    """Other members train its share again."""
    victim = cluster.members[1]
    observer = cluster.members[0]
    cluster.until_early_in_an_epoch()
    victim.process.kill()
    seat = cluster.chain_members.find(bytes(victim.wallet))
    assert seat is not None

    cluster.until(
        lambda: cluster.chain_members.seats[seat].state is MemberState.DROPPED,
        "it is dropped on chain",
    )
    owed = cluster.run.data_index
    cluster.until(
        lambda: cluster.all_trained(observer, owed), "every sequence is trained, its share too"
    )
    assert cluster.run.lost_sequences == 0

    mark = victim.event_log.position()
    cluster.start(victim)
    cluster.until_trains(victim, mark, results=3)
    assert [event["source"] for event in victim.event_log.events_of("model", mark)] == ["peers"]
    assert cluster.chain_members.find(bytes(victim.wallet)) == seat


@BOTH_ENGINES
def test_pause_and_resume_with_members_waiting(cluster: TrainingCluster) -> None:
    cluster.set_paused("pause")
    paused = cluster.until_run(lambda run: run.state is RunState.PAUSED, "the run pauses")
    assert not paused.backlog
    assert paused.lost_sequences == 0
    assert cluster.chain_members.pending == 0
    for member in cluster.members[:3]:
        cluster.until(
            lambda: member.event_log.events_of("state")[-1]["state"] == "PAUSED",  # noqa: B023
            "it sees the pause",
        )
        assert member.process.code is None
        assert member.event_log.events_of("applied")[-1]["step"] == paused.step - 1
    assert cluster.all_trained(cluster.members[0], paused.data_index)

    marks = [member.event_log.position() for member in cluster.members[:3]]
    cluster.set_paused("resume")
    for member, mark in zip(cluster.members, marks, strict=False):
        cluster.until_trains(member, mark, results=3)
        assert [event["source"] for event in member.event_log.events_of("model", mark)] == [
            "its own replica"
        ]
        assert member.event_log.events_of("applied", mark)[0]["step"] == paused.step
    run = cluster.run
    assert run.start_step == paused.step
    assert run.current.roster.bit_count() >= 3


@ONE_ENGINE  # the last test, because the run drops this member only after a while
def test_ctrl_c_with_unresponsive_chain_ends_member(cluster: TrainingCluster) -> None:
    member = cluster.members[1]
    cluster.until(lambda: cluster.in_epoch(member), "it is in an epoch")
    cluster.network.process.signal_all(signal.SIGSTOP)
    try:
        interrupt(member)
    finally:
        cluster.network.process.signal_all(signal.SIGCONT)
