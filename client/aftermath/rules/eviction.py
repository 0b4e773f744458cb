"""Eviction: whose seat a joining wallet takes when all 256 are used.

The program decides. The client computes the same choice before it joins, because a join must name
the membership of the evicted member. The program records that member's earnings there.
"""

from __future__ import annotations

from aftermath.rules import bitmap, committee
from aftermath.rules.contents import unsaved_levels
from aftermath.rules.deadlines import (
    HOLDERS_WAIT,
    expected,
    trusted_finishers,
    wanted_established,
)
from aftermath.rules.members import Members, Seat
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource, RunState


def evicted(run: Run, members: Members, model: Model, wallet: bytes, now: int) -> bytes | None:
    """Return the wallet whose seat `wallet` takes if it joins at chain time `now`.

    Return None if `wallet` has a seat, a seat is free, or every seat is protected.
    """
    if members.find(wallet) is not None or not all(seat.used for seat in members.seats):
        return None
    kept = _awaited(run, members, model, now)
    idle = [
        index
        for index, seat in enumerate(members.seats)
        if seat.state is MemberState.IDLE and not seat.pending and not bitmap.contains(kept, index)
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
    kept = _last_established(members)
    if run.state is not RunState.WAITING_FOR_MEMBERS:
        return run.finishers | recent | kept
    in_day = now <= run.waiting_since or now < run.waiting_since + HOLDERS_WAIT
    kept |= expected(run, members) if in_day else 0
    until = (
        run.state_started_at + run.config.waiting_for_members_extra_time + run.config.warmup_time
    )
    unsaved = unsaved_levels(run, model) != 0
    in_time = now <= run.state_started_at or now < until or (unsaved and in_day)
    if in_time:
        kept |= recent
    holders_are_away = unsaved and not trusted_finishers(run, members) & members.pending
    if run.model_source is ModelSource.PEERS and (in_time or holders_are_away):
        kept |= run.finishers
    return kept


def _last_established(members: Members) -> int:
    """Return the established members, as a bitmap, if undoing an epoch needs all of them."""
    wanted = wanted_established(members)
    return wanted if wanted.bit_count() <= committee.MIN_ESTABLISHED else 0
