"""Test rounds: warm-up, witnesses, quorum, deadlines, untrained data, health checks and verdicts,
with every refusal.
"""

import numpy as np
import pytest

from aftermath.rules import assignment
from aftermath.rules.run import Interval, RoundId
from aftermath.rules.state import ExitReason, MemberState, RunState
from programs.harness import World
from programs.scenario import Scenario
from rules import backlog


def test_epoch_waits_for_enough_members_and_latecomers(run: Scenario) -> None:
    run.join(0).ok()
    run.join(1).ok()
    run.world.advance(6)
    run.tick().refused("NothingToTick")
    run.join(2).ok()  # enough members: from now on latecomers have the extra time
    run.world.advance(4)
    run.tick().refused("NothingToTick")
    run.world.advance(1)
    run.tick().ok()
    state = run.run
    assert (state.state, state.current.clients, state.current.roster, state.current.elected) == (
        RunState.WARMUP,
        3,
        7,
        3,
    )
    assert {run.members.seats[seat].state for seat in range(3)} == {MemberState.HEALTHY}
    assert (run.members.pending, state.members_seq) == (0, 4)


def test_extra_time_delays_epoch(run: Scenario) -> None:
    run.owner("set_paused", True).ok()
    run.owner("set_paused", False).ok()
    for index in range(3):
        run.join(index).ok()
    run.world.advance(4)
    run.tick().refused("NothingToTick")
    run.world.advance(1)
    run.tick().ok()
    assert run.run.state is RunState.WARMUP


def test_quorum_of_ready_witnesses_ends_warm_up(run: Scenario) -> None:
    run.join(0).ok()
    run.by(0, "warmup_witness", 0).refused("WrongState")
    run.warm_up([0, 1, 2])
    run.by(0, "warmup_witness", 1).refused("SeatMismatch")
    run.by(0, "warmup_witness", 0).ok()
    run.by(0, "warmup_witness", 0).refused("DuplicateWitness")
    assert (run.run.state, run.run.rounds[0].attested) == (RunState.WARMUP, 1)
    run.by(2, "warmup_witness", 2).ok()
    assert (run.run.state, run.run.current.attested, run.run.current.batch) == (
        RunState.ROUND_TRAIN,
        0,
        48,
    )


def test_only_elected_witnesses_count(world: World) -> None:
    run = Scenario(world).start(witness_nodes=1)
    run.warm_up([0, 1, 2])
    (elected,) = run.elected()
    others = [seat for seat in range(3) if seat != elected]
    run.by(others[0], "warmup_witness", others[0]).refused("NotElected")
    run.by(elected, "warmup_witness", elected).ok()
    assert run.run.state is RunState.ROUND_TRAIN
    (elected,) = run.elected()
    other = next(seat for seat in range(3) if seat != elected)
    run.witness(other).refused("NotElected")
    run.witness(elected).ok()
    assert run.run.current.height == 1  # the only witness closes the round


def test_invalid_witness_attestations_are_refused(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.witness(0).refused("WrongState")
    run.world.advance(31)
    run.tick().ok()
    run.witness(0, at=RoundId(0, 1, 0)).refused("StaleHeight")
    run.witness(0, seat=1).refused("SeatMismatch")
    run.witness(0, seat=255).refused("SeatMismatch")
    run.witness(0, participation=1).refused("BadParticipation")  # round 0 has no round before it
    run.witness(0).ok()
    run.witness(0).refused("DuplicateWitness")
    run.witness(1).ok()
    run.witness(2).ok()
    run.witness(0, at=0).refused("StaleHeight")
    run.witness(0, participation=0b1000).refused("BadParticipation")
    run.by(1, "leave_run").ok()
    run.witness(1).refused("SeatMismatch")


def test_quorum_opens_grace_and_all_witnesses_close_round(run: Scenario) -> None:
    run.train([0, 1, 2])
    first = run.run.current
    run.witness(0).ok()
    run.tick().refused("NothingToTick")
    run.witness(1).ok()
    assert run.run.state is RunState.ROUND_WITNESS
    run.witness(2).ok()  # all witnesses have attested, so there is no grace
    state = run.run
    assert (state.state, state.current.height, state.step, state.head) == (
        RunState.ROUND_TRAIN,
        1,
        1,
        1,
    )
    assert (first.data_index, state.current.data_index, state.data_index) == (0, 48, 96)
    run.witness(0).ok()
    run.witness(1).ok()
    run.world.advance(4)
    run.tick().refused("NothingToTick")
    run.world.advance(1)
    run.tick().ok()
    state = run.run
    assert (state.current.height, state.rounds[1].attested) == (2, 0b111)


def test_first_round_increments_members_seq(run: Scenario) -> None:
    """The epoch's counts are reset when its rounds begin, so clients have to read Members again."""
    run.warm_up([0, 1, 2])
    before = run.run.members_seq
    run.world.advance(31)
    run.tick().ok()
    assert run.run.state is RunState.ROUND_TRAIN
    assert run.run.members_seq == before + 1


def test_second_transition_within_one_second_is_refused(world: World) -> None:
    run = Scenario(world).start(warmup_time=0)
    run.warm_up([0, 1, 2])
    run.tick().refused("NothingToTick")
    world.advance(1)
    run.tick().ok()
    assert run.run.state is RunState.ROUND_TRAIN


def test_seeds_depend_on_seat_hash_and_previous_seed(world: World) -> None:
    run = Scenario(world).start()
    run.train([0, 1, 2])
    seeds = [run.run.current.seed]
    for _ in range(3):
        run.witness_round()
        seeds.append(run.run.current.seed)
    assert len(set(seeds)) == 4
    other = Scenario(World()).start()
    other.train([0, 1, 2])
    assert other.run.current.seed == seeds[0]  # equal histories give equal seeds
    other.world.advance(0)
    other.witness_round()
    assert other.run.current.seed == seeds[1]  # the seed's slot was fixed before
    other.witness_round()
    assert other.run.current.seed != seeds[2]


def test_numpy_quotient_after_witness_transactions_is_exact(world: World) -> None:
    """LiteSVM may leave x87 registers in use. The harness and the embedded network clear them."""
    run = Scenario(world).start()
    run.train([0, 1, 2])
    for _ in range(3):
        run.witness_round()
        assert np.float64(1.0) // np.float64(1.0) == 1.0


def test_untrained_data_is_trained_again(run: Scenario) -> None:
    run.train([0, 1, 2])
    first = run.run.current
    run.witness_round()
    run.witness_round(participation=0b011)  # nobody holds the result of seat 2
    state = run.run
    shares = assignment.assign(first, run.members)
    redo, left = backlog.settle(backlog.Backlog(), first, shares, 0b011).backlog.take(48)
    current = state.current
    assert state.rounds[1].attested == 0b011
    assert (current.redo, current.batch) == (redo, 48)
    assert current.redone == shares[2].len == 16
    assert (run.backlog, state.backlog, state.data_index) == (
        left.intervals,
        left.waiting,
        3 * 48 - 16,
    )


def test_health_check_drops_unseen_members(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.by(0, "health_check", run.names([2])).refused("StaleHeight")
    run.witness_round()
    run.witness_round(participation=0b011)
    run.by(0, "health_check", run.names([1])).refused("NotUnhealthy")
    run.by(0, "health_check", run.names([1, 2])).refused("NotUnhealthy")
    run.by(0, "health_check", run.names([])).refused("NotUnhealthy")
    run.by(0, "health_check", run.names([9])).refused("NotUnhealthy")
    run.by(9, "health_check", run.names([2])).refused("NotAMember")
    run.by(0, "health_check", run.names([2])).ok()
    seat = run.members.seats[2]
    assert (seat.state, seat.exited_height) == (MemberState.DROPPED, 2)
    run.by(0, "health_check", run.names([2])).refused("NotUnhealthy")
    run.by(2, "health_check", run.names([2])).refused("SeatMismatch")
    # all remaining members attested, so the round closes without a grace
    run.witness_round([0, 1])
    assert (run.run.current.roster, run.run.next_roster) == (0b111, 0b011)


def test_too_few_witnesses_are_no_evidence(run: Scenario) -> None:
    """Otherwise one member could drop all others after an outage, and attest the model alone."""
    run.train([0, 1, 2])
    run.witness_round()
    run.witness_round([1], participation=0)
    run.world.advance(21)
    run.tick().ok()
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.current.height, run.run.rounds[1].attestations, run.run.rounds[1].attested) == (
        2,
        1,
        0,
    )
    run.by(1, "health_check", run.names([0, 2])).refused("NotUnhealthy")


def test_liar_in_minimal_quorum_convicts_nobody(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.witness_round()
    run.witness_round([0])
    run.witness_round([1], participation=0)
    assert run.run.state is RunState.ROUND_WITNESS
    run.world.advance(6)
    run.tick().ok()
    assert (run.run.current.height, run.run.rounds[1].attestations, run.run.rounds[1].attested) == (
        2,
        2,
        0,
    )
    run.by(1, "health_check", run.names([2])).refused("NotUnhealthy")


def test_health_check_outside_training_is_refused(run: Scenario) -> None:
    run.warm_up([0, 1, 2])
    run.by(0, "health_check", run.names([0])).refused("WrongState")


def test_round_without_witness_ends_epoch_without_loss(run: Scenario) -> None:
    run.owner("set_future_epoch_rates", 300, 0).ok()
    run.train([0, 1, 2])
    run.witness_round()
    run.world.advance(20)
    run.tick().ok()
    assert run.run.state is RunState.ROUND_WITNESS
    run.world.advance(5)
    run.tick().ok()
    state = run.run
    assert (state.state, state.exit_reason) == (RunState.COOLDOWN, ExitReason.NO_ATTESTATION)
    assert [(interval.start, interval.len) for interval in run.backlog] == [(0, 96)]
    run.world.advance(31)
    run.tick().ok()
    assert {seat.points for seat in run.members.seats} == {0}  # nobody delivered
    run.train([0, 1, 2])
    assert (run.run.current.redo, run.run.data_index) == ((Interval(0, 48),), 96)


@pytest.mark.parametrize(
    ("reason", "config"),
    [
        (ExitReason.ROUNDS_PER_EPOCH, {"rounds_per_epoch": 2}),
        (ExitReason.EPOCH_TIME, {"rounds_per_epoch": 0, "epoch_time": 33}),
        (ExitReason.TOTAL_STEPS, {"total_steps": 2}),
    ],
)
def test_epoch_ends_with_drain_round(
    world: World, reason: ExitReason, config: dict[str, int]
) -> None:
    run = Scenario(world).start(**config)
    run.train([0, 1, 2])
    run.witness_round()
    world.advance(2)
    run.witness_round()
    state = run.run
    assert (state.exit_reason, state.draining, state.step) == (reason, True, 2)
    assert (state.current.batch, state.current.height, state.data_index) == (0, 2, 96)
    run.witness_round()  # attests round 1, the last with data
    state = run.run
    assert (state.state, state.current.attested, state.backlog, state.step) == (
        RunState.COOLDOWN,
        0b111,
        0,
        3,
    )


def test_epoch_ends_after_30_days(world: World) -> None:
    """The exploit: one wallet of the owner kept an epoch running forever, and held the bonds of all
    that had left.
    """
    run = Scenario(world).start(join_bond=10**6, rounds_per_epoch=2**32 - 1, min_clients=1)
    run.train([0, 1, 2])
    for index in (0, 1):
        run.by(index, "leave_run").ok()
        run.by(index, "withdraw").refused("StillBound")
    world.advance(30 * 24 * 60 * 60)
    for _ in range(2):  # the current round, and the drain round
        run.witness_round()
    assert (run.run.state, run.run.exit_reason) == (RunState.COOLDOWN, ExitReason.EPOCH_TIME)
    world.advance(31)
    run.tick().ok()
    run.by(0, "withdraw").ok()


def test_missing_quorum_ends_epoch(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.witness_round()
    run.witness(0).ok()
    run.world.advance(21)
    run.tick().ok()
    run.world.advance(6)
    run.tick().ok()
    state = run.run
    assert (state.exit_reason, state.draining) == (ExitReason.QUORUM_MISSING, True)
    # one vote is no quorum
    assert [(interval.start, interval.len) for interval in run.backlog] == [(0, 48)]


def test_too_few_members_end_epoch(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.witness_round([0, 1])
    for index in (0, 1):
        run.by(index, "leave_run").ok()
    run.world.advance(6)
    run.tick().ok()
    state = run.run
    assert (state.exit_reason, state.draining, state.next_roster) == (
        ExitReason.TOO_FEW_CLIENTS,
        True,
        0b100,
    )


def test_run_left_by_all_members_drains_empty_round(run: Scenario) -> None:
    run.train([0, 1, 2])
    run.witness_round([0, 1])
    for index in range(3):
        run.by(index, "leave_run").ok()
    assert (run.run.current.elected, run.run.next_roster, run.run.draining) == (0, 0, True)
    run.world.advance(1)
    run.tick().ok()
    assert (run.run.state, [(one.start, one.len) for one in run.backlog]) == (
        RunState.COOLDOWN,
        [(0, 48)],
    )
    run.world.advance(31)
    run.tick().ok()
    assert (run.run.state, run.run.finishers) == (RunState.WAITING_FOR_MEMBERS, 0)
