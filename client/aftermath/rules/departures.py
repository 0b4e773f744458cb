"""The levels that an epoch loses when members leave, because those who stay cannot attest them.

Members that leave keep their places in the committees of the cooldown (`committee`). So a level may
go back to the checkpoint although some of its holders stay.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from aftermath.rules import bitmap, committee
from aftermath.rules.contents import (
    levels_without_holder,
    sole_levels,
    steps_at_risk,
    unsaved_steps,
)
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import MemberState, ModelSource, RunState


class LostLevel(NamedTuple):
    """A level that goes back to the checkpoint.

    `left` of the `holders` of its committee can still attest it. Both are 0 if there is no such
    committee.
    """

    level: int
    left: int
    holders: int


def levels_lost(run: Run, members: Members, *, silent: int = 0) -> list[LostLevel]:
    """Return the levels that the members of the running epoch cannot attest any more.

    Empty outside the rounds and the cooldown. A member that left in the cooldown counts as having
    attested, unless it is in the bitmap `silent`. The account that tells is not read.
    """
    if not _has_rounds(run):
        return []
    cooling = run.state is RunState.COOLDOWN
    if not cooling:
        # Predict `proven` at the start of the cooldown: those who stay deliver.
        members = replace(members, proven=members.proven | members.healthy)
    lost = []
    unheld = levels_without_holder(run, members)
    for level in range(run.levels):
        attested = cooling and bitmap.contains(run.levels_attested, level)
        voters = () if attested else committee.cooldown_electees(run, members, level)
        left = [seat for seat in voters if _can_attest(run, members, seat, silent)]
        is_held = any(members.seats[seat].tier <= level for seat in bitmap.seats(run.began))
        is_lost = is_held and not attested and not _suffices(run, members, level, voters, left)
        if is_lost or level in unheld:
            lost.append(LostLevel(level, len(left), len(voters)))
    return lost


def levels_lost_with(
    run: Run, members: Members, seat: int, reachable: Set[bytes], *, has_attested: bool = False
) -> list[LostLevel]:
    """Return the levels that are lost if the member of `seat` leaves now.

    Either no other reachable member has them, or the members that stay cannot attest them.
    `reachable`: see `sole_levels`. `has_attested`: whether this member has attested in the
    cooldown. Empty if the member does not hold any of them.
    """
    leaving = 0 if has_attested else members.healthy & 1 << seat
    without = left(run, members, leaving)
    lost = {one.level: one for one in levels_lost(run, without, silent=leaving)}
    sole = {
        level: lost.get(level, LostLevel(level, 0, 0))
        for level in sole_levels(run, members, seat, reachable)
    }
    levels = sorted((lost | sole).values())
    return levels if any(one.level >= members.seats[seat].tier for one in levels) else []


def left(run: Run, members: Members, leaving: int) -> Members:
    """Return the members as they are after those of the bitmap `leaving` have left the epoch.

    Members that delivered in half of the rounds keep their votes on the levels.
    """
    exited = run.current.height + (run.state is RunState.COOLDOWN)
    seats = tuple(
        replace(seat, state=MemberState.WITHDRAWN, exited_height=exited)
        if bitmap.contains(leaving, number)
        else seat
        for number, seat in enumerate(members.seats)
    )
    without_vote = 0
    if run.state is not RunState.COOLDOWN:
        without_vote = bitmap.from_seats(
            number for number in bitmap.seats(leaving) if not _delivered_half(members, number)
        )
    return replace(
        members,
        seats=seats,
        healthy=members.healthy & ~leaving,
        proven=members.proven & ~without_vote,
    )


def levels_going_back(run: Run, members: Members, model: Model) -> list[LostLevel]:
    """Return the levels that go back to the checkpoint, and steps with them.

    Within an epoch, the members that stay cannot attest them. Between epochs, no holder attested
    them. Empty if a warm-up has no member left, and if the whole run has gone back.
    """
    if run.state in (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED):
        lost = run.levels_lost if unsaved_steps(run, model) else 0
        return [LostLevel(level, 0, 0) for level in range(run.levels) if lost >> level & 1]
    if not steps_at_risk(run, model):
        return []
    if run.state is RunState.WARMUP:
        unheld = levels_without_holder(run, members) if members.healthy else []
        return [LostLevel(level, 0, 0) for level in unheld]
    return levels_lost(run, members)


def full_holders(members: Members, tier: int) -> int:
    """Return how many members of the epoch hold all levels of a tier."""
    return sum(members.seats[seat].tier <= tier for seat in bitmap.seats(members.healthy))


def makes_a_step(run: Run) -> bool:
    """Return whether the running round makes a step even if no other witness attests it."""
    round = run.current
    judged = run.round(round.height - run.config.overlap)
    has_data = judged is not None and judged.batch > 0
    has_quorum = round.attestations >= committee.round_quorum(round, round.elected)
    return run.state.training and has_data and has_quorum


def reached_steps(run: Run) -> int:
    """Return the run's trained steps, with that of the running round if a quorum attested it."""
    return run.trained_steps + makes_a_step(run)


def has_gone_back(run: Run) -> bool:
    """Return whether the run, between epochs, has gone back to the durable checkpoint."""
    waits = run.state in (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED)
    return waits and run.model_source is ModelSource.CHECKPOINT


def lost_steps(run: Run, members: Members, model: Model) -> int:
    """Return how many trained steps are lost, because the next epoch begins from the checkpoint.

    0 while members of the epoch may still attest a level that it trains. Such an epoch may lose
    other levels (`levels_going_back`).
    """
    saved = steps_before(model.checkpoint_step)
    if _has_rounds(run):
        began = [members.seats[seat].tier for seat in bitmap.seats(run.began)]
        trained = range(min(began, default=0), run.levels)
        lost = {one.level for one in levels_lost(run, members)}
        return steps_at_risk(run, model) + makes_a_step(run) if lost.issuperset(trained) else 0
    ended = run.state is RunState.FINISHED and run.model_source is ModelSource.CHECKPOINT
    return max(0, run.trained_steps - saved) if ended or has_gone_back(run) else 0


def _has_rounds(run: Run) -> bool:
    return run.state.training or run.state is RunState.COOLDOWN


def _delivered_half(members: Members, seat: int) -> bool:
    half = -(-members.judged // 2)
    return members.delivered[seat] >= half and members.shown[seat] >= 0


def _can_attest(run: Run, members: Members, seat: int, silent: int) -> bool:
    """Return whether an elected member can still attest, or may have done so before it left."""
    if bitmap.contains(members.healthy, seat):
        return bitmap.contains(members.proven, seat)
    left_late = members.seats[seat].exited_height > run.current.height
    return run.state is RunState.COOLDOWN and left_late and not bitmap.contains(silent, seat)


def _suffices(
    run: Run, members: Members, level: int, voters: tuple[int, ...], left: list[int]
) -> bool:
    """Return whether these voters attest a level at the end of the cooldown.

    Half of the committee is enough. More than half is needed if one of the others has gone and one
    of these is new to the level.
    """
    is_known = bitmap.contains(run.levels_established, level)
    any_new = is_known and any(not bitmap.contains(members.established, seat) for seat in left)
    any_gone = any(
        not bitmap.contains(members.healthy, seat) for seat in voters if seat not in left
    )
    return bool(left) and 2 * len(left) >= len(voters) + (any_new and any_gone)
