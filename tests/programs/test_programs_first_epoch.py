"""Test epochs in which newcomers witness: a run's first one, and those with fewer than three
established members.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from aftermath.rules import bitmap
from aftermath.rules.deadlines import HOLDERS_WAIT
from aftermath.rules.state import RunState
from programs.harness import World
from programs.level_holders import end, established, one_round
from programs.scenario import Scenario

View = Callable[[int, int], Mapping[int, bytes]]
"""What a member records: its index and the roster give results by seat."""


def true_results(roster: int) -> dict[int, bytes]:
    return {seat: bytes([seat + 1]) * 32 for seat in bitmap.seats(roster)}


def play(run: Scenario, view: View, late: Callable[[int], Collection[int]]) -> None:
    """Play the rounds of an epoch. `late` returns who attests nothing in the round at a height."""
    while run.run.state.training:
        height = run.run.current.height
        judged = run.run.round(run.run.config.judged(height))
        roster = judged.roster if judged else 0
        for index in run.elected():
            if (
                index not in late(height)
                and run.run.state.training
                and run.run.current.height == height
            ):
                run.witness(index, None, view(index, roster)).ok()
        for seconds in (2, 21, 6):
            if run.run.state.training and run.run.current.height == height:
                run.world.advance(seconds)
                run.tick(1)


def conclude(run: Scenario, honest: Mapping[int, int], wallets: Mapping[int, int]) -> None:
    """Play the cooldown. Honest members attest the true hashes, and the wallets other ones."""
    for index, tier in honest.items():
        run.attest(index, dict.fromkeys(range(tier, 3), b"t" * 32))
    for index, tier in wallets.items():
        run.attest(index, dict.fromkeys(range(tier, 3), b"f" * 32))
    run.world.advance(31)
    run.tick(1)


def is_established(run: Scenario, members: Collection[int]) -> list[bool]:
    return [bitmap.contains(run.members.established, run.seat_of(index)) for index in members]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize(("members", "wallets", "late"), [(9, 4, 2), (30, 13, 6)])
def test_invented_results_while_others_are_late_cost_no_vote(
    world: World, members: int, wallets: int, late: int, overlap: int
) -> None:
    """Wallets of the smallest tier all record the same made-up result for each honest member."""
    honest = dict.fromkeys(range(members - wallets), 0)
    liars = dict.fromkeys(range(members - wallets, members), 2)
    run = Scenario(world).start(rounds_per_epoch=8, overlap=overlap)
    run.train_of(honest | liars)
    others = {run.seat_of(index) for index in honest}

    def view(index: int, roster: int) -> dict[int, bytes]:
        true = true_results(roster)
        return {
            seat: b"a" * 32 if index in liars and seat in others else true[seat] for seat in true
        }

    def is_late(height: int) -> set[int]:
        return {(late * height + offset) % len(honest) for offset in range(late)}

    play(run, view, is_late)
    conclude(run, honest, liars)
    assert all(is_established(run, honest))
    assert b"f" * 32 not in run.run.level_hashes


def test_liar_is_not_established_despite_late_small_witness(world: World) -> None:
    """Two of five holders of level 0 hide it; a member that does not hold it is late."""
    honest = dict.fromkeys(range(3), 0)
    small = dict.fromkeys(range(3, 11), 2)
    liars = dict.fromkeys((11, 12), 0)
    run = Scenario(world).start(rounds_per_epoch=6, overlap=1)
    run.train_of(honest | small | liars)
    hidden = {run.seat_of(index) for index in liars}

    def view(index: int, roster: int) -> dict[int, bytes]:
        true = true_results(roster)
        return {
            seat: result
            for seat, result in true.items()
            if index not in honest or seat not in hidden
        }

    play(run, view, lambda height: {3})
    conclude(run, honest | small, {})
    assert all(is_established(run, honest))
    assert not any(is_established(run, liars))


@pytest.mark.parametrize("delivers", ["nothing", "another result to each peer"])
def test_wallet_without_any_result_is_not_established(world: World, delivers: str) -> None:
    honest = dict.fromkeys(range(7), 0)
    liars = dict.fromkeys((7, 8), 0)
    run = Scenario(world).start(rounds_per_epoch=6)
    run.train_of(honest | liars)
    seats = {run.seat_of(index) for index in liars}

    def view(index: int, roster: int) -> dict[int, bytes]:
        results = true_results(roster)
        for seat in seats & results.keys():
            if delivers != "nothing":
                results[seat] = bytes([100 + index, seat]) * 16
            elif index not in liars:
                del results[seat]
        return results

    play(run, view, lambda height: ())
    conclude(run, honest, liars)
    assert all(is_established(run, honest))
    assert not any(is_established(run, liars))
    assert {run.members.seats[seat].weight for seat in seats} == {1}


def test_newcomer_without_large_level_is_not_a_finisher(world: World) -> None:
    """A newcomer that declares the whole model but shows only its smallest level does not hold the
    rest.
    """
    run, honest = established(world, (0, 0, 1, 2, 2))
    liar = 5
    fresh = (6, 7)
    run.train_of(honest | {liar: 0})
    holders = [index for index, tier in honest.items() if tier < 2]
    while run.run.state.training:
        one_round(run, dict.fromkeys(holders, (run.seat_of(liar),)))
    conclude(run, honest, {})
    assert not bitmap.contains(run.run.finishers, run.seat_of(liar))
    assert is_established(run, [liar]) == [False]
    for index in (liar, *fresh):
        run.join(index, tier=0).ok()
    run.world.advance(HOLDERS_WAIT - 1)
    run.tick(liar).refused("NothingToTick")
    assert run.run.state is RunState.WAITING_FOR_MEMBERS
    run.join(0, tier=0).ok()
    run.world.advance(6)
    run.tick(liar).ok()
    assert run.run.state is RunState.WARMUP
    assert bitmap.contains(run.members.healthy, run.seat_of(0))


def test_rounds_of_one_late_witness_count_for_others(world: World) -> None:
    """One of five honest members never attests. The epoch establishes all that deliver."""
    honest = dict.fromkeys(range(5), 0)
    run = Scenario(world).start(rounds_per_epoch=4)
    run.train_of(honest)
    play(run, lambda index, roster: true_results(roster), lambda height: {4})
    end(run)
    assert all(is_established(run, honest))


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize(
    ("known", "newcomers", "wallets"), [((0,), 4, 3), ((0, 0), 5, 4), ((2, 2, 2), 4, 3)]
)
def test_few_established_members_keep_votes_against_a_third(
    world: World, known: tuple[int, ...], newcomers: int, wallets: int, overlap: int
) -> None:
    """The wallets attest their own results only, so that no other result has a quorum."""
    run = Scenario(world).start(
        rounds_per_epoch=6, overlap=overlap, init_min_clients=1, min_clients=1
    )
    first = dict(enumerate(known))
    run.train_of(first)
    play(run, lambda index, roster: true_results(roster), lambda height: ())
    conclude(run, first, {})
    assert all(is_established(run, first))
    honest = first | dict.fromkeys(range(len(known), len(known) + newcomers), 0)
    liars = dict.fromkeys(range(len(honest), len(honest) + wallets), 0)
    run.train_of(honest | liars)
    assert len(run.elected()) == len(honest | liars)
    own = {run.seat_of(index) for index in liars}

    def view(index: int, roster: int) -> dict[int, bytes]:
        return {
            seat: result
            for seat, result in true_results(roster).items()
            if index not in liars or seat in own
        }

    before = run.run.step
    play(run, view, lambda height: ())
    conclude(run, honest, liars)
    assert run.run.step > before
    assert all(is_established(run, honest))
    assert b"f" * 32 not in run.run.level_hashes
    assert {run.members.seats[run.seat_of(index)].weight for index in honest} != {1}
