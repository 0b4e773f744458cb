"""Whose seat a joining wallet takes where all 256 are somebody's: the program's choice, made by the client beforehand.

A join must bring the membership of whoever loses its seat, so that what that one has earned is written down there.
"""

from __future__ import annotations

from aftermath.rules import bitmap
from aftermath.rules.accounts import Members, Run, Seat
from aftermath.rules.state import MemberState, ModelSource, RunState


def evicted(run: Run, members: Members, wallet: bytes, now: int) -> bytes | None:
    """The wallet whose seat `wallet` gets if it joins at chain time `now`; None if it has one, or one is nobody's, or
    none is to be had.
    """
    if members.find(wallet) is not None or not all(seat.used for seat in members.seats):
        return None
    kept = run.finishers if _awaits_finishers(run, now) else 0
    idle = [
        index
        for index, seat in enumerate(members.seats)
        if seat.state is MemberState.IDLE and not seat.pending and not bitmap.contains(kept, index)
    ]
    if not idle:
        return None
    chosen = min(idle, key=lambda index: _worth(run, members.seats[index], bitmap.contains(run.finishers, index)))
    return members.seats[chosen].signer


def _worth(run: Run, seat: Seat, finisher: bool) -> tuple[bool, bool, bool, bool, int]:
    """The lower, the sooner the seat is given away."""
    return finisher, seat.points > 0, seat.weight > 1, seat.last_epoch + 1 >= run.epoch, seat.last_epoch


def _awaits_finishers(run: Run, now: int) -> bool:
    """Whether those who hold the model still have the time to come back that an epoch waits for them."""
    until = run.state_started_at + run.config.waiting_for_members_extra_time + run.config.warmup_time
    waiting = run.state is RunState.WAITING_FOR_MEMBERS and (now <= run.state_started_at or now < until)
    return waiting and run.model_source is ModelSource.PEERS
