"""Test that members keep their vote on a level across epochs if they showed it while they were
present.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
from solders.pubkey import Pubkey

from aftermath.rules import bitmap, committee
from programs.harness import Outcome, World, authorization_address
from programs.level_holders import LIARS, TIERS, begin, end, established, one_round
from programs.scenario import EVERYONE, Scenario, member

THREE = (0, 0, 0, 1, 2, 2, 1)
TWO = (0, 0, 1, 1, 2, 2, 1)
HIDER = 2


def _lacks(who: int, holders: Collection[int] = range(len(THREE))) -> dict[int, tuple[int, ...]]:
    """Return what each holder lacks: all of them except `who` lack its result."""
    return {index: (who,) for index in holders if index != who}


def _has_word(run: Scenario, seat: int) -> bool:
    return bitmap.contains(run.members.established, seat)


def _drop(run: Scenario, by: int, seat: int) -> None:
    run.by(by, "health_check", run.names([seat])).ok()


@pytest.mark.parametrize("how", ["leaves", "leaves in cooldown", "restarts", "is dropped", "stays"])
def test_hiding_level_costs_its_attestation_right(world: World, how: str) -> None:
    """The member withholds level 0 for three rounds and leaves before the epoch ends, in each
    possible way.
    """
    run, honest = established(world, THREE)
    begin(run, honest)
    hidden = _lacks(HIDER, (0, 1))
    for _ in range(3):
        one_round(run, hidden)
    match how:
        case "leaves":
            run.by(HIDER, "leave_run").ok()
        case "restarts":
            run.join(HIDER, stateless=True).ok()
        case "is dropped":
            one_round(run, _lacks(HIDER), silent=(HIDER,))
            _drop(run, 0, HIDER)
    while run.run.state.training:
        one_round(run, hidden)
    if how == "leaves in cooldown":
        run.by(HIDER, "leave_run").ok()
    end(run)
    assert run.members.established == bitmap.from_seats(set(honest) - {HIDER})
    begin(run, honest)
    assert not bitmap.contains(run.members.judges, HIDER)
    assert run.members.shown[HIDER] == -1, "one round more is asked of it than of the others"


def test_hiding_level_after_absence_ends_established_status(world: World) -> None:
    """An absent member keeps its right to attest a level. It loses the right in the first epoch in
    which it withholds that level.
    """
    run, honest = established(world, THREE)
    others = {index: tier for index, tier in honest.items() if index != HIDER}
    begin(run, others)
    end(run)
    assert _has_word(run, HIDER)
    begin(run, honest)
    for _ in range(3):
        one_round(run, _lacks(HIDER, (0, 1)))
    run.by(HIDER, "leave_run").ok()
    end(run, _lacks(HIDER))
    assert not _has_word(run, HIDER)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_leaver_that_showed_all_it_owed_keeps_its_vote(world: World, rounds: int) -> None:
    run, honest = established(world, THREE)
    run.train_of(honest)
    for _ in range(rounds):
        one_round(run, {})
    run.by(HIDER, "leave_run").ok()
    one_round(run, {})  # the round before is judged, of which it delivered its share
    end(run, _lacks(HIDER))
    assert _has_word(run, HIDER)


def test_leaver_in_warm_up_keeps_its_vote(world: World) -> None:
    run, honest = established(world, THREE)
    for index, tier in honest.items():
        run.join(index, tier=tier).ok()
    world.advance(40)
    run.tick().ok()
    run.draw()
    run.by(HIDER, "leave_run").ok()
    world.advance(31)
    run.tick().ok()
    end(run, _lacks(HIDER))
    assert _has_word(run, HIDER)


def test_silent_holders_lose_right_to_shown_level(
    world: World,
) -> None:
    """Two of three holders of level 0 are silent from the first round on. The level goes back to
    the checkpoint once, because half of its holders have left, and not in every epoch.
    """
    run, honest = established(world, THREE)
    run.train_of(honest)
    silent = (1, 2)
    one_round(run, {}, silent)
    one_round(run, dict.fromkeys(honest, silent), silent)
    for seat in silent:
        _drop(run, 0, seat)
    end(run, dict.fromkeys(honest, silent))
    assert [_has_word(run, seat) for seat in range(3)] == [True, False, False]
    run.train_of(honest)
    while run.run.state.training:
        one_round(run, dict.fromkeys(honest, silent), silent)
    assert committee.cooldown_electees(run.run, run.members, 0) == (0,)


def test_only_proven_holder_keeps_its_level_through_outage(world: World) -> None:
    """It is cut off from the first round on and dropped.

    Otherwise newcomers would decide the next epoch.
    """
    run, honest = established(world)
    run.train_of(honest)
    one_round(run, {}, silent=(0,))
    one_round(run, _lacks(0), silent=(0,))
    _drop(run, 1, 0)
    end(run, _lacks(0))
    assert _has_word(run, 0)
    begin(run, honest | dict.fromkeys(LIARS, 0))
    assert run.run.levels_established == 0b111


def test_only_proven_holder_loses_its_level_by_hiding_another(
    world: World,
) -> None:
    """It hides level 1 from all its holders, for one round more than an outage
    lasts, and leaves.
    """
    run, honest = established(world)
    run.train_of(honest)
    one_round(run, {})
    for _ in range(5):
        one_round(run, _lacks(0, (1, 2, 6)))
    run.by(0, "leave_run").ok()
    end(run)
    assert not _has_word(run, 0)


def test_one_of_two_holders_cannot_discredit_the_other(
    world: World,
) -> None:
    """The liar delivers everything, and claims in every round that it lacks level 0 of the other's
    result.
    """
    run, honest = established(world, TWO)
    begin(run, honest)
    end(run, {1: (0,)})
    assert run.members.established == bitmap.from_seats(honest)
    assert run.members.shown[0] == 1, "the rounds that they are of two minds about count for nobody"


def test_quorum_of_three_still_counts_against_one(world: World) -> None:
    run, honest = established(world, THREE)
    begin(run, honest)
    end(run, {1: (0,)})
    assert run.members.established == bitmap.from_seats(honest)
    begin(run, honest)
    end(run, {1: (0,), 2: (0,)})
    assert run.members.established == bitmap.from_seats(set(honest) - {0})


def test_unelected_judge_has_its_own_vote(world: World) -> None:
    """Only one of two judges attests. Its denials count against newcomers only."""
    run, honest = established(world, TWO)
    begin(run, honest | {7: 0})
    before = run.members.shown[:8]
    for _ in range(3):
        one_round(run, {1: (0, 7)}, silent=(0,))
    assert [run.members.shown[seat] - before[seat] for seat in (0, 1, 7)] == [1, 3, -1]


# --- the first holders of a level


def test_first_holders_of_level_are_chosen_by_its_majority(world: World) -> None:
    """The chain cannot tell two liars that accuse one member from two honest members that one liar
    accuses.

    Two of three decide which members hold the level from then on. Nobody is dropped, and all other
    levels keep their holders.
    """
    run = Scenario(world).start(init_min_clients=3, rounds_per_epoch=8)
    tiers = dict(enumerate(TIERS))
    begin(run, tiers | dict.fromkeys(LIARS, 0))
    end(run, {0: LIARS} | dict.fromkeys(LIARS, (0,)))
    assert run.members.established == bitmap.from_seats({*range(1, 7), *LIARS})
    assert run.run.finishers == run.members.established


@pytest.mark.parametrize("answers", [True, False])
def test_first_epoch_holder_cannot_discredit_the_other(world: World, answers: bool) -> None:
    """It claims that it got nothing from the only other holder of level 0, which may claim the
    same.

    Both keep their status.
    """
    run = Scenario(world).start(init_min_clients=3, rounds_per_epoch=8)
    tiers = dict(enumerate(TIERS))
    begin(run, tiers | {7: 0})
    end(run, {7: (0,)} | ({0: (7,)} if answers else {}))
    assert run.members.established == bitmap.from_seats(range(8))


def test_minority_of_first_holders_cannot_discredit_others(
    world: World,
) -> None:
    """Two of five deny that they got results from the other three, so those
    three have no quorum.
    """
    run = Scenario(world).start(init_min_clients=3, rounds_per_epoch=8)
    tiers = (0, 0, 0, 1, 1, 2, 2, 0, 0, 2)
    begin(run, dict(enumerate(tiers)))
    end(run, dict.fromkeys(LIARS, range(3)))
    assert run.members.established == bitmap.from_seats(range(len(tiers)))


def test_minority_of_new_level_holders_does_not_attest_alone(world: World) -> None:
    """Five members join for level 0, next to established members of other tiers; two of them deny
    that they got results from the other three.
    """
    run, rest = established(world, (1, 1, 1, 2, 2, 2, 2))
    run.train_of(rest | dict.fromkeys(range(7, 12), 0))
    end(run, dict.fromkeys((7, 8), (9, 10, 11)))
    assert run.members.established == bitmap.from_seats(range(12))


@pytest.mark.parametrize("founded", [True, False])
def test_minority_hiding_new_level_is_not_established(world: World, founded: bool) -> None:
    """Two of five that join for level 0 give none of it to the others, in a
    first or a later epoch.
    """
    rest = (1, 1, 1, 2, 2, 2, 2)
    run = (
        established(world, rest)[0]
        if founded
        else Scenario(world).start(init_min_clients=3, rounds_per_epoch=8)
    )
    run.train_of(dict(enumerate(rest)) | dict.fromkeys(range(7, 12), 0))
    end(run, dict.fromkeys((9, 10, 11), (7, 8)))
    assert run.members.established == bitmap.from_seats(set(range(12)) - {7, 8})


@pytest.mark.parametrize("number", [0, 22, 26, 35])
@pytest.mark.parametrize("lie", ["denies", "hides"])
def test_liar_among_few_drawn_holders_of_new_level_has_no_effect(
    world: World, lie: str, number: int
) -> None:
    """Three of ten members witness.

    One of four that join for level 0 denies the others' results, or withholds its own from them. No
    witness then holds its level.
    """
    # with these seeds, the liar is drawn with no or one other holder
    world.advance(0, slots=1 + number)
    run = Scenario(world)
    rest = dict(enumerate((1, 1, 1, 2, 2, 2)))
    liar = 9
    run.start(init_min_clients=3, min_clients=3, witness_nodes=3, rounds_per_epoch=3)
    begin(run, rest)
    end(run)
    run.train_of(rest | dict.fromkeys(range(6, 10), 0))
    end(run, {liar: (6, 7, 8)} if lie == "denies" else dict.fromkeys(range(9), (liar,)))
    assert run.members.established == bitmap.from_seats(range(10 if lie == "denies" else 9))


def test_first_holders_come_from_authorized_wallets(
    world: World,
) -> None:
    """The join authority authorizes wallets that it knows, and everyone once an epoch has ended."""
    run = Scenario(world)
    honest = dict(enumerate(TIERS))
    run.create().ok()
    run.configure(init_min_clients=3, rounds_per_epoch=8).ok()
    run.owner("set_paused", False).ok()
    for index in honest:
        run.authorize(member(index).pubkey()).ok()
    _join_named(run, honest)
    for liar in LIARS:
        _join(run, liar, 0, EVERYONE).refused("UninitializedAccount")  # no such permission
    _start(run)
    end(run)
    run.authorize().ok()
    assert run.members.established == bitmap.from_seats(honest)
    _join_named(run, honest)
    for liar in LIARS:
        _join(run, liar, 0, EVERYONE).ok()
    _start(run)
    end(run, {0: LIARS} | dict.fromkeys(LIARS, (0,)))
    assert run.members.established == bitmap.from_seats(honest)


def _join(run: Scenario, index: int, tier: int, grantee: Pubkey) -> Outcome:
    """Join with the authorization of this grantee."""
    run.accounts["authorization"] = authorization_address(run.grantor.pubkey(), grantee)
    return run.join(index, tier=tier)


def _join_named(run: Scenario, tiers: Mapping[int, int]) -> None:
    for index, tier in tiers.items():
        _join(run, index, tier, member(index).pubkey()).ok()


def _start(run: Scenario) -> None:
    """Start the epoch of all waiting members.

    Stop in the round whose first attestation judges round 0.
    """
    run.world.advance(40)
    run.tick().ok()
    run.draw()
    run.world.advance(31)
    run.tick().ok()
    for _ in range(2):
        one_round(run, {})
