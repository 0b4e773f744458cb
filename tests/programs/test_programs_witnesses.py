"""Test witnesses when members leave: the next in order replaces them, votes keep their seat, and
rounds do not wait in vain.
"""

from __future__ import annotations

import pytest

from aftermath.rules import bitmap
from aftermath.rules.state import ExitReason, RunState
from programs.harness import World
from programs.level_holders import begin, end, one_round
from programs.scenario import Scenario


def _leave(run: Scenario, index: int) -> None:
    run.by(index, "leave_run").ok()


def test_next_member_in_order_replaces_leaving_witness(world: World) -> None:
    run = Scenario(world).start(witness_nodes=1)
    run.train([0, 1, 2, 3])
    (first,) = run.elected()
    _leave(run, first)
    (second,) = run.elected()
    last = next(index for index in range(4) if index not in (first, second))
    run.witness(last).refused("NotElected")
    run.witness(second).ok()
    assert (run.run.current.height, run.run.rounds[0].attestations) == (1, 1)
    # no result of the previous round counts for a closed round
    assert run.run.rounds[0].attested == 0


def test_round_of_judges_with_one_witness_wanted_elects_two(world: World) -> None:
    """One judge alone is no quorum, so no round would end if only one was elected."""
    run = Scenario(world).start(witness_nodes=1, init_min_clients=3, rounds_per_epoch=3)
    members = dict.fromkeys(range(4), 0)
    begin(run, members)
    end(run)
    assert run.members.established == bitmap.from_seats(members)
    run.train_of(members)
    for height in range(1, 4):
        assert len(run.elected()) == 2
        one_round(run, {})
        assert run.run.current.height == height or not run.run.state.training
    assert run.run.exit_reason is ExitReason.ROUNDS_PER_EPOCH


def test_warm_up_next_in_line_reports_ready(world: World) -> None:
    run = Scenario(world).start(witness_nodes=1)
    run.warm_up([0, 1, 2, 3])
    (first,) = run.elected()
    _leave(run, first)
    (second,) = run.elected()
    run.by(second, "warmup_witness", second).ok()
    assert run.run.state is RunState.ROUND_TRAIN


def test_witness_leaving_after_attestation_is_not_replaced(world: World) -> None:
    """Otherwise a minority could vote, leave, and let its next members vote."""
    run = Scenario(world).start(witness_nodes=3, min_clients=3, init_min_clients=9)
    run.train(range(9))
    first, second, third = run.elected()
    run.witness(first).ok()
    _leave(run, first)
    assert run.elected() == [first, second, third]
    assert run.run.current.attested == 1 << first
    run.witness(next(index for index in range(9) if index not in (first, second, third))).refused(
        "NotElected"
    )
    _leave(run, second)
    assert run.elected()[:2] == [first, third]
    run.witness(third).ok()
    assert run.run.state is RunState.ROUND_WITNESS  # two of three elected are a quorum


def test_round_closes_when_no_witness_is_left(world: World) -> None:
    run = Scenario(world).start(init_min_clients=4, min_clients=2)
    run.train([0, 1, 2, 3])
    run.witness(0).ok()
    for index in (1, 2):
        _leave(run, index)
        assert run.run.current.height == 0
    _leave(run, 3)
    state = run.run
    assert (state.current.height, state.draining, state.exit_reason) == (
        1,
        True,
        ExitReason.TOO_FEW_CLIENTS,
    )


def test_minority_leaving_after_election_keeps_epoch(world: World) -> None:
    """Two of five leave after the election.

    The other three once could not reach the quorum of four.
    """
    run = Scenario(world).start(init_min_clients=5)
    run.train(range(5))
    for index in (0, 1):
        _leave(run, index)
    assert run.run.current.elected == 3
    for index in (2, 3):
        run.witness(index).ok()
    run.witness(4).ok()
    state = run.run
    assert (state.current.height, state.draining, state.exit_reason) == (1, False, ExitReason.NONE)
    assert (state.current.clients, state.current.elected) == (5, 3)


def test_silent_witness_counts_for_size_of_quorum(world: World) -> None:
    run = Scenario(world).start(init_min_clients=5)
    run.train(range(5))
    for index in range(3):
        run.witness(index).ok()
    world.advance(21)
    run.tick().ok()
    world.advance(6)
    run.tick().ok()
    assert (run.run.current.height, run.run.exit_reason) == (1, ExitReason.QUORUM_MISSING)


def test_only_remaining_quorum_convicts(world: World) -> None:
    """Votes of witnesses that have left drop nobody.

    Otherwise the base of the quorum would shrink twice.
    """
    run = Scenario(world).start(init_min_clients=5, min_clients=1)
    run.train(range(5))
    run.witness_round()
    run.witness_round(range(4), participation=0b01111)
    world.advance(6)
    run.tick().ok()
    assert run.run.current.height == 2
    _leave(run, 0)
    run.by(2, "health_check", run.names([4])).refused("NotUnhealthy")


def test_member_dropped_by_quorum_reduces_quorum_base(world: World) -> None:
    run = Scenario(world).start(init_min_clients=5)
    run.train(range(5))
    run.witness_round()
    run.witness_round(range(4), participation=0b01111)
    world.advance(6)
    run.tick().ok()
    run.by(2, "health_check", run.names([4])).ok()
    assert run.run.current.elected == 4


@pytest.mark.parametrize("witnesses", [1, 2, 3, 4, 8])
def test_few_elected_witnesses_drop_nobody(world: World, witnesses: int) -> None:
    """One person may own all of them by chance, and could have all other members dropped in a
    round.
    """
    run = Scenario(world).start(
        init_min_clients=witnesses, min_clients=witnesses, witness_nodes=witnesses
    )
    run.train(range(3 * witnesses))
    run.witness_round()
    elected = run.elected()
    assert len(elected) == witnesses
    run.witness_round(elected, participation=bitmap.from_seats(elected))
    others = sorted(set(range(3 * witnesses)) - set(elected))
    assert run.run.round(1).attested == bitmap.from_seats(elected)  # type: ignore[union-attr]
    run.by(elected[0], "health_check", run.names(others)).refused("NotUnhealthy")


@pytest.mark.parametrize(("witnesses", "dropped"), [(5, False), (6, True), (9, True)])
def test_drop_needs_quorum_of_all_electable_witnesses(
    world: World, witnesses: int, dropped: bool
) -> None:
    run = Scenario(world).start(init_min_clients=9, min_clients=9, witness_nodes=witnesses)
    run.train(range(9))
    run.witness_round()
    run.witness_round(participation=0b0_1111_1111)
    assert run.by(0, "health_check", run.names([8])).error == (None if dropped else "NotUnhealthy")


def test_round_left_by_all_members_ends_epoch(world: World) -> None:
    run = Scenario(world).start(min_clients=1)
    run.train([0, 1, 2])
    for index in range(3):
        _leave(run, index)
    world.advance(1)
    run.tick().ok()
    assert (run.run.state, run.run.exit_reason) == (RunState.COOLDOWN, ExitReason.NO_ATTESTATION)


def test_warm_up_waits_only_for_remaining_members(world: World) -> None:
    """Two of three elected members have left. The third suffices, since no other member could
    report.
    """
    run = Scenario(world).start(min_clients=1)
    run.warm_up([0, 1, 2])
    _leave(run, 0)
    _leave(run, 1)
    assert run.run.state is RunState.WARMUP
    run.by(2, "warmup_witness", 2).ok()
    assert run.run.state is RunState.ROUND_TRAIN
