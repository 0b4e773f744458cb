"""Test runs without overlap: a round's own witnesses attest its results, and an epoch needs no
drain round.
"""

import pytest

from aftermath.rules import assignment
from aftermath.rules.run import Interval
from aftermath.rules.state import ExitReason, MemberState, RunState
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario
from rules import backlog

ALL = 0b111


@pytest.fixture
def run(world: World) -> Scenario:
    """Return three members in round 0 of a run without overlap."""
    return Scenario(world).start(overlap=0).train([0, 1, 2])


def _time_up(run: Scenario) -> None:
    """Close the running round with the attestations that it has."""
    run.world.advance(21)
    run.tick().ok()
    run.world.advance(6)
    run.tick().ok()


def test_round_without_overlap_is_attested_by_its_witnesses(run: Scenario) -> None:
    run.witness(0, participation=0b1000).refused("BadParticipation")
    run.witness(0, participation=ALL).ok()  # already in round 0
    run.witness_round([1, 2], participation=ALL)
    state = run.run
    assert (state.current.height, state.rounds[0].attested, state.current.redo) == (1, ALL, ())
    assert (state.step, state.data_index) == (2, 96)


def test_only_members_of_round_can_be_attested(run: Scenario) -> None:
    run.by(2, "leave_run").ok()
    run.witness_round([0, 1], participation=ALL)  # it delivered before it left
    state = run.run
    assert (state.rounds[0].attested, state.current.roster) == (ALL, ALL)
    run.witness_round([0, 1], participation=0b011)
    assert run.run.current.roster == 0b011
    run.witness(0, participation=ALL).refused("BadParticipation")
    run.witness(0, participation=0b011).ok()


def test_result_without_quorum_is_trained_again_next_round(run: Scenario) -> None:
    first = run.run.current
    run.witness_round(participation=0b011)
    state = run.run
    shares = assignment.assign(first, run.members)
    redo, left = backlog.settle(backlog.Backlog(), first, shares, 0b011).backlog.take(48)
    assert state.current.redone == shares[2].len == 16
    assert (state.rounds[0].attested, state.current.redo) == (0b011, redo)
    assert (run.backlog, state.backlog, state.data_index) == (
        left.intervals,
        left.waiting,
        2 * 48 - 16,
    )


def test_health_check_judges_last_closed_round(run: Scenario) -> None:
    run.by(0, "health_check", run.names([2])).refused("StaleHeight")
    run.witness_round(participation=0b011)
    run.by(0, "health_check", run.names([1])).refused("NotUnhealthy")
    run.by(0, "health_check", run.names([2])).ok()
    seat = run.members.seats[2]
    assert (seat.state, seat.exited_height) == (MemberState.DROPPED, 1)
    run.witness_round([0, 1])
    assert (run.run.current.roster, run.run.next_roster) == (0b111, 0b011)
    run.by(0, "health_check", run.names([1])).refused("NotUnhealthy")


def test_overlap_liar_in_minimal_quorum_convicts_nobody(run: Scenario) -> None:
    run.witness_round([0])
    run.witness_round([1], participation=0)
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.current.height, run.run.rounds[0].attested) == (1, 0)
    run.by(1, "health_check", run.names([2])).refused("NotUnhealthy")


@pytest.mark.parametrize(
    ("reason", "config"),
    [
        (ExitReason.ROUNDS_PER_EPOCH, {"rounds_per_epoch": 2}),
        (ExitReason.EPOCH_TIME, {"rounds_per_epoch": 0, "epoch_time": 33}),
        (ExitReason.TOTAL_STEPS, {"total_steps": 2}),
    ],
)
def test_epoch_without_overlap_ends_without_drain_round(
    world: World, reason: ExitReason, config: dict[str, int]
) -> None:
    run = Scenario(world).start(overlap=0, **config).train([0, 1, 2])
    run.witness_round()
    world.advance(2)
    run.witness_round()
    state = run.run
    assert (state.state, state.exit_reason, state.draining) == (RunState.COOLDOWN, reason, False)
    assert (state.current.height, state.current.attested, state.step, state.data_index) == (
        1,
        ALL,
        3,
        96,
    )
    assert state.backlog == 0


def test_pause_ends_epoch_with_running_round(run: Scenario) -> None:
    run.owner("set_future_epoch_rates", 300, 0).ok()
    run.owner("set_paused", True).ok()
    run.witness_round()
    assert (run.run.state, run.run.exit_reason) == (RunState.COOLDOWN, ExitReason.PAUSE)
    hashes = {level: bytes([level + 1]) * 32 for level in range(3)}
    for index in (0, 1, 2):
        run.attest(index, hashes)
    state = run.run
    assert (state.levels_attested, state.attested_step, state.step) == (0b111, 2, 2)
    run.world.advance(31)
    run.tick().ok()
    assert (run.run.state, run.run.finishers) == (RunState.PAUSED, ALL)


def test_missing_quorum_ends_epoch_without_settlement(run: Scenario) -> None:
    run.witness_round()
    run.witness(0).ok()
    _time_up(run)
    state = run.run
    assert (state.state, state.exit_reason, state.current.height) == (
        RunState.COOLDOWN,
        ExitReason.QUORUM_MISSING,
        1,
    )
    assert (state.current.attested, [(one.start, one.len) for one in run.backlog]) == (
        0,
        [(48, 48)],
    )


def test_unwitnessed_round_ends_epoch_and_returns_data_once(
    run: Scenario,
) -> None:
    run.owner("set_future_epoch_rates", 300, 0).ok()
    run.witness_round()
    _time_up(run)
    state = run.run
    assert (state.state, state.exit_reason) == (RunState.COOLDOWN, ExitReason.NO_ATTESTATION)
    assert [(one.start, one.len) for one in run.backlog] == [(48, 48)]
    run.world.advance(31)
    run.tick().ok()
    assert {seat.points for seat in run.members.seats} == {0}
    run.train([0, 1, 2])
    assert (run.run.current.redo, run.run.data_index) == ((Interval(48, 48),), 96)


def test_run_left_by_everybody_goes_to_cooldown(run: Scenario) -> None:
    run.witness_round([0, 1])
    for index in range(3):
        run.by(index, "leave_run").ok()
    state = run.run
    assert (state.state, state.exit_reason) == (RunState.COOLDOWN, ExitReason.TOO_FEW_CLIENTS)
    assert (state.current.attested, state.backlog) == (ALL, 0)


def test_member_staying_to_last_round_is_paid(world: World) -> None:
    run = Scenario(world).start(overlap=0, rounds_per_epoch=2)
    run.owner("set_future_epoch_rates", 300, 0).ok()
    run.train([0, 1, 2]).finish_rounds()
    run.world.advance(31)
    run.tick().ok()
    assert [seat.points for seat in run.members.seats[:3]] == [100, 100, 100]


@pytest.mark.parametrize(
    ("overlap", "rounds", "changed"), [(0, 0, 0), (0, 1, 1), (1, 1, 0), (1, 2, 1)]
)
def test_level_whose_holder_applied_results_is_unattested(
    world: World, overlap: int, rounds: int, changed: int
) -> None:
    """The only holder of level 0 leaves after some rounds. It applies the results of round 0 in
    round 1, or in round 2.
    """
    run = Scenario(world).start(overlap=overlap, rounds_per_epoch=4)
    for index in range(3):
        run.join(index, tier=index).ok()
    world.advance(6)
    run.tick().ok()
    world.advance(31)
    run.tick().ok()
    for _ in range(rounds):
        run.witness_round()
    run.by(0, "leave_run").ok()
    run.finish_rounds()
    state = run.run
    assert state.level_hashes == (UNATTESTED if changed else bytes(32), UNATTESTED, UNATTESTED)


def test_overlap_may_change_between_epochs(run: Scenario) -> None:
    run.configure(overlap=1).refused("NotHalted")
    run.owner("set_paused", True).ok()
    run.witness_round()
    run.world.advance(31)
    run.tick().ok()
    run.configure(overlap=1).ok()
    run.owner("set_paused", False).ok()
    run.train([0, 1, 2])
    run.witness(0, participation=1).refused("BadParticipation")
    run.owner("set_paused", True).ok()
    run.witness_round()
    assert (run.run.draining, run.run.current.height) == (True, 1)
