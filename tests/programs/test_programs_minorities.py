"""Test what wallets can do next to established members, and in epochs without them."""

from __future__ import annotations

import pytest

from aftermath.rules import bitmap, committee
from aftermath.rules.state import ExitReason
from programs.harness import World
from programs.level_holders import end, established, one_round
from programs.scenario import Scenario

FIVE = (0, 0, 1, 1, 2)


def _epoch(
    run: Scenario,
    honest: dict[int, int],
    lacks: dict[int, tuple[int, ...]],
    silent: tuple[int, ...],
) -> int:
    """Return the steps of an epoch.

    Silent members and those that lack something are of tier 0, unless they are honest.
    """
    before = run.run.step
    run.train_of(dict.fromkeys((*lacks, *silent), 0) | honest)
    while run.run.state.training:
        one_round(run, lacks, silent)
    return run.run.step - before


@pytest.mark.parametrize("wallets", [2, 3, 12])
def test_silent_newcomers_stop_nothing(world: World, wallets: int) -> None:
    run, honest = established(world, FIVE)
    silent = tuple(range(len(FIVE), len(FIVE) + wallets))
    for _ in range(2):
        assert _epoch(run, honest, dict.fromkeys(honest, silent), silent) > 1
        assert run.run.exit_reason is not ExitReason.QUORUM_MISSING
        end(run)
        assert run.members.established == bitmap.from_seats(honest)


@pytest.mark.parametrize(
    ("wallets", "lose"), [(2, ()), (3, ()), (4, (0, 1)), (6, (0, 1, 2, 3, 4))], ids=str
)
def test_wallets_denying_all_results_need_majority(
    world: World, wallets: int, lose: tuple[int, ...]
) -> None:
    """They attest only their own results.

    In their first epoch they are not judges. In the next one, with more than a third of the
    deliveries, only their results are applied. A member loses its right to attest only to two
    thirds of a level's holders that are more than half of all judges. These are the limits in
    docs/security.md.
    """
    run, honest = established(world, FIVE)
    liars = dict.fromkeys(range(len(FIVE), len(FIVE) + wallets), tuple(honest))
    mine = bitmap.from_seats(honest)
    theirs = bitmap.from_seats(liars)

    def weights() -> list[int]:
        return [run.members.seats[run.seat_of(index)].weight for index in honest]

    before = weights()
    _epoch(run, honest, liars, ())
    end(run, liars)
    assert run.members.established == mine | theirs
    assert weights() >= before
    _epoch(run, honest, liars, ())
    end(run, liars)
    assert run.members.established == (mine | theirs) & ~bitmap.from_seats(lose)
    assert set(weights()) == {1} if wallets > 2 else weights() >= before


@pytest.mark.parametrize("wallets", [3, 12])
@pytest.mark.parametrize("tiers", [FIVE, (0, 0, 1), (0, 1, 1, 2)], ids=str)
def test_newcomers_do_not_attest_in_their_first_cooldown(
    world: World, tiers: tuple[int, ...], wallets: int
) -> None:
    """They delivered everything, and are more than a third or two thirds of the members."""
    run, honest = established(world, tiers)
    liars = range(len(tiers), len(tiers) + wallets)
    _epoch(run, honest | dict.fromkeys(liars, 0), {}, ())
    for index in liars:
        assert not committee.levels_to_attest(run.run, run.members, run.seat_of(index))
        run.attest(index, dict.fromkeys(range(3), b"f" * 32)).refused("NotElected")
    true = {level: bytes([level + 1]) * 32 for level in range(3)}
    for index, tier in honest.items():
        run.attest(index, {level: true[level] for level in range(tier, 3)}).ok()
    assert (run.run.levels_attested, run.run.level_hashes) == (0b111, tuple(true.values()))


@pytest.mark.parametrize("left", [3, 2, 1])
def test_established_members_left_after_warm_up_witness_alone(world: World, left: int) -> None:
    """The others join again in the warm-up, as after a restart. That gives newcomers no vote."""
    run, honest = established(world, FIVE)
    newcomers = range(len(FIVE), 2 * len(FIVE))
    for index in (*honest, *newcomers):
        run.join(index, tier=honest.get(index, 0)).ok()
    run.world.advance(40)
    run.tick().ok()
    run.draw()
    for index in range(left, len(FIVE)):
        run.join(index, tier=honest[index], stateless=True).ok()
    run.world.advance(31)
    run.tick().ok()
    assert sorted(run.elected()) == [*range(left)]


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("first", ["wallets", "honest"])
@pytest.mark.parametrize(
    ("wallets", "members", "rounds", "late", "lie"),
    [
        (2, 5, 1, 0, "none"),
        (2, 5, 4, 0, "none"),
        (3, 8, 4, 0, "none"),
        (4, 11, 12, 0, "none"),
        (3, 7, 4, 2, "none"),
        (3, 7, 4, 2, "same"),
        (3, 7, 4, 2, "different"),
        (4, 11, 4, 3, "none"),
    ],
)
def test_first_epoch_minority_above_a_third_has_no_vote_alone(
    world: World,
    wallets: int,
    members: int,
    rounds: int,
    late: int,
    lie: str,
    first: str,
    overlap: int,
) -> None:
    """The wallets attest only their own results, or invent others'.

    So no other result has a quorum, even while honest witnesses are late.
    """
    run = Scenario(world).start(rounds_per_epoch=rounds, overlap=overlap)
    honest = range(members - wallets)
    liars = range(members - wallets, members)
    run.train_of(dict.fromkeys(range(members), 0))
    theirs = bitmap.from_seats(run.seat_of(index) for index in liars)
    while run.run.state.training:
        judged = run.run.round(run.run.current.height - overlap)
        roster = judged.roster if judged else 0
        results = {seat: bytes([seat + 1]) * 32 for seat in bitmap.seats(roster)}
        for index in sorted(
            run.elected(), key=lambda one: (one in liars) is not (first == "wallets")
        ):
            made_up = {"none": None, "same": b"a" * 32, "different": bytes([100 + index]) * 32}[lie]
            lies = {
                seat: made_up for seat in results if made_up and not bitmap.contains(theirs, seat)
            }
            own = {
                seat: result for seat, result in results.items() if bitmap.contains(theirs, seat)
            }
            if index >= late:
                run.witness(index, None, own | lies if index in liars else results).ok()
        run.world.advance(run.run.config.max_round_train_time + 1 if late else 2)
        run.tick(members - 1)
    assert run.run.step > 1
    for index in honest:
        assert committee.levels_to_attest(run.run, run.members, run.seat_of(index)) == (0, 1, 2)
        run.attest(index, dict.fromkeys(range(3), b"t" * 32)).ok()
    for index in liars:
        run.attest(index, dict.fromkeys(range(3), b"f" * 32)).ok()
    end(run)
    assert run.run.level_hashes != (b"f" * 32,) * 3
    assert not run.run.levels_attested
    assert run.members.established == bitmap.from_seats(range(members))
    assert {run.members.seats[run.seat_of(index)].weight for index in honest} != {1}


@pytest.mark.parametrize("missed", [0, 1])
def test_member_denied_by_only_other_judge_loses_by_one_miss(world: World, missed: int) -> None:
    """It keeps its right to attest until it misses one round."""
    run, honest = established(world, (*FIVE, 2, 1))
    run.train_of(honest)
    while run.run.state.training:
        out = missed and run.run.current.height == 4
        one_round(run, dict.fromkeys(honest, (1,)) if out else {0: (1,)})
    end(run)
    assert bitmap.contains(run.members.established, 1) is not bool(missed)
