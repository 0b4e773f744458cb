"""Eviction: which members may be dropped, and whose seat a wallet takes when all 256 are used.

The program decides. The client computes the same choices before it sends a transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aftermath.rules import bitmap, committee
from aftermath.rules.committee import quorum, round_quorum
from aftermath.rules.consensus import scores
from aftermath.rules.contents import unsaved_levels
from aftermath.rules.deadlines import (
    HOLDERS_WAIT,
    expected,
    trusted_finishers,
    wanted_established,
)
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Model
from aftermath.rules.run import Attestation, Run
from aftermath.rules.state import MemberState, ModelSource, RunState

OFTEN = 8
"""A member is a suspect if its rounds with missing levels exceed its complete rounds by this
number. One bad round may be an accident.
"""


def suspects(run: Run, members: Members) -> int:
    """Return the healthy members (a bitmap) of the last judged round that often missed levels."""
    judged = run.round(run.config.judged(run.current.height - 1))
    if judged is None or not judged.batch:
        return 0
    roster = judged.roster & members.mask(MemberState.HEALTHY)
    return bitmap.from_seats(seat for seat in bitmap.seats(roster) if members.shown[seat] <= -OFTEN)


def incomplete(run: Run, members: Members, attestations: Collection[Attestation]) -> int:
    """Return the suspects (a bitmap) that attestations of the last closed round convict.

    Only holders of a level can tell whether it was delivered, so a quorum of all witnesses is not
    enough. The judges are witnesses that showed the level in an earlier epoch. Otherwise two
    newcomers that declare a tier could convict its only other holder.
    """
    judges = run.round(run.current.height - 1)
    healthy = members.mask(MemberState.HEALTHY)
    remaining = [one for one in attestations if bitmap.contains(healthy, one.seat)]
    if judges is None or len(remaining) < round_quorum(judges, judges.elected):
        return 0
    recorded = bitmap.from_seats(
        seat
        for seat, votes in scores(attestations).items()
        if votes >= round_quorum(judges, judges.elected)
    )
    # A member that owed nothing is attested, although no witness recorded a result from it.
    owing = ~judges.attested | recorded
    participations = {one.seat: one.participation for one in remaining}

    def convicted(seat: int) -> bool:
        return any(
            _lacks(run, members, participations, seat, level)
            for level in range(members.seats[seat].tier, run.levels)
        )

    return bitmap.from_seats(
        seat for seat in bitmap.seats(suspects(run, members) & owing) if convicted(seat)
    )


def _lacks(
    run: Run, members: Members, participations: Mapping[int, int], accused: int, level: int
) -> bool:
    """Return whether enough established holders of a level did not receive it from the accused."""
    established = bitmap.seats(members.established & run.began)
    holders = {seat for seat in established if members.seats[seat].tier <= level}
    judges = holders & participations.keys()
    without = sum(not bitmap.contains(participations[seat], accused) for seat in judges)
    # The accused counts as a judge if it is established. One judge convicts alone only if the level
    # has no other established holder. Otherwise a quorum of these holders must agree.
    return without >= max(quorum(len(judges | (holders & {accused}))), min(2, len(holders)))


def evicted(run: Run, members: Members, model: Model, wallet: bytes, now: int) -> bytes | None:
    """Return the wallet whose seat `wallet` takes if it joins at chain time `now`.

    A join must name the membership of the evicted member. The program records its earnings there.
    Return None if `wallet` has a seat, a seat is free, or every seat is protected.
    """
    if members.find(wallet) is not None or not all(seat.used for seat in members.seats):
        return None
    awaited_seats = _awaited(run, members, model, now)
    idle = [
        index
        for index, seat in enumerate(members.seats)
        if seat.state is MemberState.IDLE
        and not seat.pending
        and not bitmap.contains(awaited_seats, index)
    ]
    if not idle:
        return None
    chosen = min(
        idle,
        key=lambda index: _worth(run, members.seats[index], bitmap.contains(run.finishers, index)),
    )
    return members.seats[chosen].signer


def _worth(run: Run, seat: Seat, finisher: bool) -> tuple[bool, bool, bool, bool, int]:
    """Return a sort key. The member with the lowest key loses its seat first."""
    return (
        finisher,
        seat.points > 0,
        seat.weight > 1,
        seat.last_epoch + 1 >= run.epoch,
        seat.last_epoch,
    )


def _awaited(run: Run, members: Members, model: Model, now: int) -> int:
    """Return the members that keep their seats, as a bitmap: finishers and some established."""
    recent = bitmap.from_seats(
        number for number, seat in enumerate(members.seats) if seat.last_epoch + 1 >= run.epoch
    )
    recent &= members.established
    seats = _last_established(members)
    if run.state is not RunState.WAITING_FOR_MEMBERS:
        return run.finishers | recent | seats
    in_day = now <= run.waiting_since or now < run.waiting_since + HOLDERS_WAIT
    seats |= expected(run, members) if in_day else 0
    until = (
        run.state_started_at + run.config.waiting_for_members_extra_time + run.config.warmup_time
    )
    unsaved = unsaved_levels(run, model) != 0
    in_time = now <= run.state_started_at or now < until or (unsaved and in_day)
    if in_time:
        seats |= recent
    holders_are_away = unsaved and not trusted_finishers(run, members) & members.pending
    if run.model_source is ModelSource.PEERS and (in_time or holders_are_away):
        seats |= run.finishers
    return seats


def _last_established(members: Members) -> int:
    """Return the established members, as a bitmap, if undoing an epoch needs all of them."""
    established = wanted_established(members)
    return established if established.bit_count() <= committee.MIN_ESTABLISHED else 0
