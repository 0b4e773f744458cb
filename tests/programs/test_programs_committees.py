"""Test the committees of levels: up to 32 members that delivered the level in half the rounds."""

from __future__ import annotations

import pytest

from aftermath.rules import bitmap, committee
from aftermath.rules.state import RunState
from programs.audit_cases import audit_of, convict, start_established
from programs.harness import World
from programs.scenario import UNATTESTED, Scenario

HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
FALSE = dict.fromkeys(range(3), b"f" * 32)


def _electees(run: Scenario, level: int = 0) -> set[int]:
    return set(committee.cooldown_electees(run.run, run.members, level))


def _rounds(run: Scenario, participation: int) -> None:
    """Play all rounds of an epoch in which these members deliver."""
    while run.run.state.training:
        judged = run.run.round(run.run.current.height - 1)
        run.witness_round(participation=participation & (judged.roster if judged else 0))


def test_declared_tier_proves_nothing(world: World) -> None:
    """Four of seven declare the whole model and deliver nothing.

    They once had a majority in every committee.
    """
    run = Scenario(world).start(init_min_clients=7, rounds_per_epoch=4)
    run.train(range(7))
    _rounds(run, participation=0b0000111)
    assert run.run.state is RunState.COOLDOWN
    assert _electees(run) == {0, 1, 2}
    for index in range(3, 7):
        run.attest(index, FALSE).refused("NotElected")
    for index in (0, 1):
        run.attest(index, HASHES).ok()
    assert (run.run.levels_attested, run.run.level_hashes) == (0b111, tuple(HASHES.values()))


@pytest.mark.parametrize("idle", [1, 3])
def test_first_epoch_establishes_only_few_members_without_share(world: World, idle: int) -> None:
    """Wallets that declare almost no weight owe nothing. Unless they are few, they would otherwise
    become a third of the established members without training.
    """
    run = Scenario(world).start(
        rounds_per_epoch=3, global_batch_size_start=47, global_batch_size_end=47
    )
    for index in range(4 + idle):
        run.join(index, weight=10_000 if index < 4 else 1).ok()
    run.train(())
    owed = 0
    while run.run.state.training:
        owing = run.owing()
        run.witness_round(participation=owing)
        owed |= owing
    assert run.members.judged == 3
    assert owed & 0b1111 == 0b1111
    few = 4 * (4 + idle - owed.bit_count()) <= owed.bit_count()
    assert few == (idle == 1)
    assert run.members.proven == (run.run.began if few else owed)


def test_newcomer_owing_nothing_has_shown_nothing(world: World) -> None:
    """A newcomer that is too slow to get a sequence counts as delivering, but does not prove its
    levels.
    """
    run = Scenario(world).start(
        init_min_clients=2, rounds_per_epoch=3, global_batch_size_start=47, global_batch_size_end=47
    )
    for newcomers in ((), (2,)):
        for index in (0, 1, *newcomers):
            run.join(index, weight=1 if newcomers and index == 2 else 10_000).ok()
        world.advance(40)
        run.train(())
        _rounds(run, participation=0b011)
        assert (run.members.proven, _electees(run)) == (0b011, {0, 1})
        for index in newcomers:
            # half of the rounds
            assert (run.members.judged, run.members.delivered[index]) == (3, 2)
            run.attest(index, FALSE).refused("NotElected")
        world.advance(31)
        run.tick().ok()


def test_delivery_in_half_of_rounds_suffices(world: World) -> None:
    run = Scenario(world).start(init_min_clients=4, rounds_per_epoch=5)
    run.train(range(4))
    masks = iter((0, 0b1111, 0b1111, 0b1101, 0b1001, 0b0001))
    for participation in masks:
        run.witness_round(participation=participation)
    assert run.members.judged == 5
    assert run.members.delivered[:4] == (5, 2, 3, 4)
    assert _electees(run) == {0, 2, 3}


def test_last_holder_cannot_attest_for_dropped_holders(world: World) -> None:
    """A member has the two other holders of level 0 dropped, and then attests the level alone."""
    run = Scenario(world).start(init_min_clients=5, min_clients=2, rounds_per_epoch=6)
    for index in range(5):
        run.join(index, tier=0 if index < 3 else 1).ok()
    run.train(())
    for _ in range(3):
        run.witness_round()
    # it withheld level 0 from them, so the others saw nothing of theirs
    run.witness_round(participation=0b11100)
    run.by(2, "health_check", run.names([0, 1])).ok()
    _rounds(run, participation=0b11111)
    assert run.run.state is RunState.COOLDOWN
    assert _electees(run) == {0, 1, 2}
    run.attest(2, FALSE).ok()
    for index in (3, 4):
        run.attest(index, {1: HASHES[1], 2: HASHES[2]}).ok()
    assert run.run.level_hashes[0] == UNATTESTED
    world.advance(31)
    run.tick().ok()
    assert (run.run.state, run.run.levels_attested) == (RunState.WAITING_FOR_MEMBERS, 0)
    assert FALSE[0] not in run.run.level_hashes


def test_early_leaver_is_not_awaited(world: World) -> None:
    """It leaves before it delivered in half of the rounds, so its silence delays nobody."""
    run = Scenario(world).start(init_min_clients=4, rounds_per_epoch=6)
    run.train(range(4))
    run.witness_round()
    run.witness_round(participation=0b0111)
    run.witness_round(participation=0b0111)
    run.by(3, "leave_run").ok()
    _rounds(run, participation=0b0111)
    assert _electees(run) == {0, 1, 2}


def test_ejected_members_have_no_vote(world: World) -> None:
    run = Scenario(world).start(init_min_clients=10, rounds_per_epoch=4, verification_percent=100)
    start_established(run, dict.fromkeys(range(10), 0))
    for _ in range(3):
        run.witness_round()
    audit = audit_of(run.draw(), 1)
    target = audit.target
    assert bitmap.contains(run.members.proven, target)
    convict(run, audit)
    assert not bitmap.contains(run.members.proven, target)
    _rounds(run, participation=bitmap.from_seats(set(range(10)) - {target}))
    assert target not in _electees(run)


def test_every_level_has_its_own_committee_of_32(world: World) -> None:
    """All levels once shared 32 places.

    With three levels, seven liars of forty could be a quorum of ten.
    """
    run = Scenario(World()).start(init_min_clients=40, min_clients=1, rounds_per_epoch=1)
    run.train(range(40)).finish_rounds()
    electees = committee.cooldown_electees(run.run, run.members, 0)
    assert len(electees) == 32
    outsider = next(seat for seat in range(40) if seat not in electees)
    run.attest(outsider, HASHES).refused("NotElected")
    for seat in electees[:21]:
        run.attest(seat, HASHES).ok()
    assert run.run.levels_attested == 0
    run.attest(electees[21], HASHES).ok()
    assert run.run.levels_attested == 0b111
