"""Test that a member is dropped if it often withholds a level from all its holders, and that a
holder that cannot get the level is not.
"""

from __future__ import annotations

from collections.abc import Collection

import pytest

from aftermath.chain import views
from aftermath.rules import bitmap, eviction
from aftermath.rules.state import MemberState
from programs.harness import World
from programs.level_holders import LIARS, TIERS, begin, established, one_round
from programs.scenario import Scenario

LONG = 4 * eviction.OFTEN


def _accuse(run: Scenario, by: int, seats: Collection[int], *, guilty: bool) -> None:
    """Check that the program and the client agree whether these seats may be dropped."""
    state = run.run
    ring = state.ring(state.current.height - 1)
    closed = state.round(state.current.height - 1)
    assert ring is not None
    assert closed is not None
    offset, length = views.witness_round_range(ring, closed.attestations)
    data = run.world.data(run.accounts["witnesses"])[offset : offset + length]
    expected = eviction.incomplete(
        state, run.members, views.parse_witness_round(data, closed.attestations)
    )
    assert bitmap.from_seats(seats) & expected == (bitmap.from_seats(seats) if guilty else 0)
    outcome = run.by(by, "health_check", run.names(seats))
    if guilty:
        outcome.ok()
    else:
        outcome.refused("NotUnhealthy")


def _shown(run: Scenario, seat: int) -> int:
    return run.members.shown[seat]


def test_members_hiding_level_from_its_holder_are_dropped(
    world: World,
) -> None:
    """Two wallets declare tier 0, vouch for each other, and deny the results of the honest holder.
    The program drops them and not the holder.
    """
    run, honest = established(world, rounds=LONG)
    begin(run, honest | dict.fromkeys(LIARS, 0))
    lacks = {0: LIARS} | dict.fromkeys(LIARS, (0,))
    while _shown(run, 7) > -eviction.OFTEN:
        one_round(run, lacks)
        _accuse(run, 7, (0,), guilty=False)
        _accuse(run, 1, LIARS, guilty=_shown(run, 7) <= -eviction.OFTEN)
    assert run.members.mask(MemberState.DROPPED) == bitmap.from_seats(LIARS)
    assert _shown(run, 0) > 0
    _accuse(run, 2, (0,), guilty=False)
    one_round(run, lacks)
    run.finish_rounds()
    assert run.members.mask(MemberState.HEALTHY) == bitmap.from_seats(honest)


def test_holder_delivering_again_is_not_dropped(world: World) -> None:
    run, honest = established(world, rounds=LONG)
    begin(run, honest | {7: 0})
    while _shown(run, 7) > -eviction.OFTEN:
        one_round(run, {0: (7,)})
    one_round(run, {})
    _accuse(run, 1, (7,), guilty=False)
    one_round(run, {0: (7,)})
    assert _shown(run, 7) == -eviction.OFTEN
    _accuse(run, 1, (7,), guilty=True)


def test_one_of_two_holders_drops_nobody(world: World) -> None:
    """It can drop neither the other holder, silent or not, nor a newcomer about which the other
    holder says nothing.

    Neither loses score, because one of two judges is no quorum.
    """
    run, honest = established(world, (0, 0, 1, 1, 2, 2, 1, 2), LONG)
    begin(run, honest | {8: 0})
    lacks = {0: (1, 8), 1: (0,), 8: (0, 1)}
    for index in range(3 * eviction.OFTEN):
        one_round(run, lacks, silent=(1,) if index % 2 else (0,) if index % 3 == 0 else ())
        for seat in (0, 1, 8):
            _accuse(run, 2, (seat,), guilty=False)
    assert min(_shown(run, 0), _shown(run, 1)) > 0
    while _shown(run, 8) > -eviction.OFTEN:
        one_round(run, lacks, silent=(1,))
    one_round(run, {0: (1, 8), 1: (0, 8)})
    _accuse(run, 2, (0,), guilty=False)
    _accuse(run, 2, (1,), guilty=False)
    _accuse(run, 2, (8,), guilty=True)  # both holders report it now


def test_holder_of_many_is_dropped_and_judges_no_more(world: World) -> None:
    run, honest = established(world, (0, 0, 0, 1, 2, 2, 1), LONG)
    begin(run, honest)
    lacks = {0: (2,), 1: (2,), 2: (0, 1)}
    while _shown(run, 2) > -eviction.OFTEN:
        one_round(run, lacks)
    for innocent in (0, 1):
        _accuse(run, 2, (innocent,), guilty=False)
    run.by(2, "health_check", run.names([0, 2])).refused("NotUnhealthy")  # for both
    _accuse(run, 3, (2,), guilty=True)
    assert run.members.established == bitmap.from_seats(set(honest) - {2})


def test_judges_stay_the_same_during_epoch(world: World) -> None:
    """Members apply results by these judges at different times.

    A dropped judge was still a judge of the round.
    """
    run, honest = established(world, (0, 0, 0, 1, 2, 2, 1), LONG)
    begin(run, honest | {7: 0})
    judges = bitmap.from_seats(honest)
    assert run.members.judges == run.members.established == judges
    assert run.run.levels_established == 0b111
    # two of three have the results of 7; without the liar, one of two has them
    lacks = {0: (2,), 1: (2, 7), 2: (0, 1)}
    while _shown(run, 2) > -eviction.OFTEN:
        one_round(run, lacks)
    before = _shown(run, 7)
    _accuse(run, 3, (2,), guilty=True)
    one_round(run, lacks)
    assert _shown(run, 7) == before + 1
    assert run.members.judges == judges != run.members.established
    run.finish_rounds()
    world.advance(31)
    run.tick(3).ok()
    assert run.members.judges == judges, "also for who applies the last round late"
    begin(run, honest | {7: 0})
    assert run.members.judges == run.members.established != judges


def test_middle_tier_level_has_its_own_holders(world: World) -> None:
    """A member that declares tier 1 withholds its level.

    Tiers 0 and 1 drop it, although tier 2 lacks nothing.
    """
    run, honest = established(world, (0, 1, 1, 2, 2, 2, 2, 2, 2), LONG)
    begin(run, honest | {9: 1})
    while _shown(run, 9) > -eviction.OFTEN:
        one_round(run, {0: (9,), 1: (9,), 2: (9,), 3: (1,), 4: (1,)})
    _accuse(run, 3, (1,), guilty=False)
    _accuse(run, 3, (9,), guilty=True)


def test_members_without_shown_levels_convict_nobody(world: World) -> None:
    """In a first epoch of any length, two that declare tier 0 cannot drop the honest one."""
    run = Scenario(world).start(init_min_clients=3, rounds_per_epoch=LONG)
    begin(run, dict(enumerate(TIERS)) | dict.fromkeys(LIARS, 0))
    lacks = {0: LIARS} | dict.fromkeys(LIARS, (0,))
    for _ in range(2 * eviction.OFTEN):
        one_round(run, lacks)
        _accuse(run, 7, (0,), guilty=False)
        _accuse(run, 1, LIARS, guilty=False)
    assert _shown(run, 0) < -eviction.OFTEN


@pytest.mark.parametrize("gone", [2, 3])
def test_conviction_needs_quorum_of_all_remaining(world: World, gone: int) -> None:
    """A round with too few witnesses, or whose witnesses have left, is no evidence about a level
    either.
    """
    run, honest = established(world, rounds=LONG)
    begin(run, honest | {7: 0})
    while _shown(run, 7) > -eviction.OFTEN:
        one_round(run, {0: (7,)})
    for index in range(7 - gone, 7):
        run.by(index, "leave_run").ok()
    _accuse(run, 1, (7,), guilty=gone == 2)
