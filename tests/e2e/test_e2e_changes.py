"""A run whose members come, go, die and return, while it trains on; its replicas stay equal through
all of it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from xprocess import XProcess

from aftermath.rules.state import MemberState, RunState
from e2e.company import Company, Player
from e2e.material import Material
from e2e.network import Network

ROUNDS = 20  # in an epoch: enough for a member that starts early in it to be in the next
DOWN_SECONDS = 10.0
SIGINT_SECONDS = 20.0  # from Ctrl-C to the end of the process at most, however busy the machine is
ON_EMBEDDED = pytest.param("embedded", marks=pytest.mark.slow)
# The main job runs on the validator in the slow tests (test_e2e_training.py).
ON_VALIDATOR = pytest.param("validator", marks=pytest.mark.nightly)
ONE_ENGINE = pytest.mark.parametrize("engine", [ON_EMBEDDED], indirect=True)
BOTH_ENGINES = pytest.mark.parametrize("engine", [ON_EMBEDDED, ON_VALIDATOR], indirect=True)


@pytest.fixture(scope="module")
def started(
    network: Network,
    xprocess: XProcess,
    material: Material,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Company]:
    """A run that never ends, with members of tiers 0, 1 and 2, shared by the tests of this file."""
    company = Company(network, xprocess, tmp_path_factory.mktemp("company"))
    company.configure(material.config(company.place, rounds_per_epoch=ROUNDS, total_steps=100_000))
    company.start_three()
    yield company
    company.disband()


@pytest.fixture
def crew(started: Company) -> Iterator[Company]:
    """That run, with its first three members healthy and training; afterwards all replicas are
    compared.
    """
    for player in started.players[:3]:
        if player.process.code is not None:
            started.start(player)
    marks = [player.diary.mark() for player in started.players[:3]]
    for player, mark in zip(started.players, marks, strict=False):
        started.until_trains(player, mark)
    yield started
    started.compare_replicas()


@BOTH_ENGINES  # the first one: it needs members that have seen everything
def test_members_survive_a_chain_that_is_gone_for_a_while(crew: Company) -> None:
    players = crew.players[:3]
    before = crew.until_early_in_an_epoch()
    crew.network.go_down()
    down_until = time.monotonic() + DOWN_SECONDS
    try:
        while time.monotonic() < down_until:
            assert [player.process.code for player in players] == [None, None, None]
            time.sleep(0.5)
    finally:
        crew.network.come_back()
    after = crew.run
    assert after.seq >= before.seq, "what was acknowledged is still there"
    assert after.step >= before.step

    # The outage may make one member late in a round: it is dropped, and applies nothing until the
    # next epoch.
    crew.until_run(
        lambda run: run.epoch > before.epoch and run.state.training, "the next epoch begins"
    )
    marks = [player.diary.mark() for player in players]
    for player, mark in zip(players, marks, strict=True):
        crew.until_trains(player, mark, results=3)
    run = crew.run
    assert run.lost_sequences == 0
    owed = run.data_index
    crew.until(
        lambda: sum(crew.all_trained(one, owed) for one in players) >= 2,
        "every sequence is trained",
    )


@ONE_ENGINE
def test_late_joiner_takes_the_model_and_leaves_by_two_ctrl_c(crew: Company) -> None:
    late = crew.player(1)
    epoch = crew.until_early_in_an_epoch().epoch
    crew.start(late)
    joined = crew.until(lambda: late.diary.saw("joined"), "it joins")[0]
    assert joined["epoch"] == epoch
    assert late.diary.saw("state")[0]["state"] in {
        state.name for state in RunState if state.training
    }
    crew.until_trains(late, 0, results=3)
    assert [(event["source"]) for event in late.diary.saw("model")] == ["peers"]
    applied = late.diary.saw("applied")
    assert applied[0]["epoch"] == epoch + 1
    assert applied[0]["height"] == 0
    leave(crew, late, twice=True)


def leave(crew: Company, player: Player, *, twice: bool = False) -> None:
    """Ctrl-C: it leaves the run on chain, quickly, and exits 0; the others continue."""
    crew.until(lambda: crew.in_epoch(player), "it is in an epoch")
    if twice:
        player.process.signal_all(signal.SIGINT)
    interrupt(player)
    crew.until(lambda: has_left(crew, player), "the chain knows that it left", 20)
    others = [other for other in crew.players if other.process.code is None]
    for other, mark in [(other, other.diary.mark()) for other in others]:
        crew.until_trains(other, mark, results=4)


def interrupt(player: Player) -> None:
    """Ctrl-C: it ends by itself, and with 0."""
    player.process.interrupt(SIGINT_SECONDS)
    assert player.process.code == 0, player.process.output[-2000:]


def has_left(crew: Company, player: Player) -> bool:
    """Whether it is out of the running epoch (idle: that epoch has ended since) and does not want
    the next.
    """
    place = crew.seat(player)
    assert place is not None
    return not place.pending and place.state in (MemberState.WITHDRAWN, MemberState.IDLE)


@ONE_ENGINE
def test_ctrl_c_leaves_the_run_and_the_member_can_return(crew: Company) -> None:
    player = crew.players[2]
    leave(crew, player)
    mark = player.diary.mark()
    crew.start(player)
    crew.until_trains(player, mark)
    assert [event["source"] for event in player.diary.saw("model", mark)] == ["peers"]


@ONE_ENGINE
def test_a_second_process_with_the_same_wallet_is_refused(crew: Company) -> None:
    player = crew.players[2]
    mark = player.diary.mark()
    second = crew.start(player)
    second.expected = False
    player.processes.remove(second)
    assert second.wait() == 1
    assert (
        f"another process on this machine already takes part in run {crew.run_id} with this wallet"
        in second.output
    )
    crew.until_trains(player, mark, results=3)


@ONE_ENGINE  # `make demo` shows it on both
def test_killed_member_is_dropped_and_returns(crew: Company) -> None:
    """Other members train its share again."""
    victim = crew.players[1]
    observer = crew.players[0]
    crew.until_early_in_an_epoch()
    victim.process.kill()
    seat = crew.members.find(bytes(victim.wallet))
    assert seat is not None

    crew.until(
        lambda: crew.members.seats[seat].state is MemberState.DROPPED, "it is dropped on chain"
    )
    owed = crew.run.data_index
    crew.until(lambda: crew.all_trained(observer, owed), "every sequence is trained, its share too")
    assert crew.run.lost_sequences == 0

    mark = victim.diary.mark()
    crew.start(victim)
    crew.until_trains(victim, mark, results=3)
    assert [event["source"] for event in victim.diary.saw("model", mark)] == ["peers"]
    assert crew.members.find(bytes(victim.wallet)) == seat


@BOTH_ENGINES
def test_pause_and_resume_with_members_waiting(crew: Company) -> None:
    crew.set_paused("pause")
    paused = crew.until_run(lambda run: run.state is RunState.PAUSED, "the run pauses")
    assert not paused.backlog
    assert paused.lost_sequences == 0
    assert crew.members.pending == 0
    for player in crew.players[:3]:
        crew.until(lambda: player.diary.saw("state")[-1]["state"] == "PAUSED", "it sees the pause")  # noqa: B023
        assert player.process.code is None
        assert player.diary.saw("applied")[-1]["step"] == paused.step - 1
    assert crew.all_trained(crew.players[0], paused.data_index)

    marks = [player.diary.mark() for player in crew.players[:3]]
    crew.set_paused("resume")
    for player, mark in zip(crew.players, marks, strict=False):
        crew.until_trains(player, mark, results=3)
        assert [event["source"] for event in player.diary.saw("model", mark)] == ["its own replica"]
        assert player.diary.saw("applied", mark)[0]["step"] == paused.step
    run = crew.run
    assert run.start_step == paused.step
    assert run.current.roster.bit_count() >= 3


@ONE_ENGINE  # the last one: the run drops this member only after a while
def test_ctrl_c_ends_a_member_whose_chain_does_not_answer(crew: Company) -> None:
    player = crew.players[1]
    crew.until(lambda: crew.in_epoch(player), "it is in an epoch")
    crew.network.process.signal_all(signal.SIGSTOP)
    try:
        interrupt(player)
    finally:
        crew.network.process.signal_all(signal.SIGCONT)
