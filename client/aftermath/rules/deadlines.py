"""Deadlines: when a run may be ticked, and which member ticks it first.

A seeded ranking orders the members, so one transaction usually suffices. A silent member costs
`TICK_STEP` seconds.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import NamedTuple

from aftermath.rules import bitmap, committee
from aftermath.rules.contents import unsaved_levels, unsaved_steps
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Round, Run
from aftermath.rules.state import MemberState, ModelSource, RunState

HOLDERS_WAIT = 24 * 60 * 60
"""Seconds that newcomers wait for an established member, that established members wait for a
trusted finisher, or that members outside an epoch wait for its last member.
"""
_DRAWS = (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS)
_WARMUP_DRAW = 1
"""Seconds after which a tick draws the seed of a warm-up, since the witnesses wait for it."""
# The program forgets the hash of a slot after 512 slots. Draw long before that, or the first caller
# could choose between two seeds. Usually an attestation has already drawn the seed.
_ROUND_DRAW = 60
"""Seconds after which a tick draws the seed of the next round."""


def next_deadline(
    run: Run,
    members: Members | None = None,
    model: Model | None = None,
) -> int | None:
    """Return the chain time (unix seconds) from which a tick may change the run, or None.

    While the run waits for members, the clock starts once enough of them are pending, and some
    waits are longer. A cooldown with nothing left to do ends at once, unless the epoch is audited.
    Both need `members` and `model`.
    """
    config = run.config
    satisfied = run.state is RunState.ROUND_TRAIN and _has_quorum(run.current)
    waits = {
        RunState.WAITING_FOR_MEMBERS: config.waiting_for_members_extra_time,
        RunState.WARMUP: config.warmup_time,
        RunState.ROUND_TRAIN: config.min_round_time if satisfied else config.max_round_train_time,
        RunState.ROUND_WITNESS: config.round_witness_time,
        RunState.COOLDOWN: config.cooldown_time,
    }
    if run.state not in waits:
        return None
    wait = waits[run.state]
    day_ends = 0
    if run.state is RunState.WAITING_FOR_MEMBERS and members is not None:
        if members.pending.bit_count() < config.init_min_clients:
            return None
        if model is not None and _unsaved_away(run, members, model):
            if waits_for_holder(run, members, model):
                return None
            wait += config.warmup_time
        if waits_a_day(run, members, model):
            day_ends = run.waiting_since + HOLDERS_WAIT
        elif expected(run, members):  # after a rewind
            wait = max(wait, config.waiting_for_members_extra_time + config.warmup_time)
    if (
        run.state is RunState.COOLDOWN
        and members is not None
        and model is not None
        and _epoch_is_safe(run, members, model)
    ):
        wait = 0
    # The length of a slot depends on the network. Try from the first second on, because an early
    # tick costs nothing.
    if run.state in _DRAWS and not run.seed_is_drawn:
        wait = min(wait, _WARMUP_DRAW if run.state is RunState.WARMUP else _ROUND_DRAW)
    # The program never performs two transitions in one second. A satisfied round waits only for its
    # seed's slot.
    least = 0 if satisfied else 1
    return max(run.state_started_at + max(least, wait), day_ends)


def rounds_end(run: Run, now: int) -> int:
    """Return the latest chain time at which the rounds end if nobody attests after `now`.

    `run` is in a round. A deadline in the past counts as `now`, because each tick makes one
    transition.
    """
    config = run.config
    round = run.current
    end = run.state_started_at
    if run.state is RunState.ROUND_TRAIN:
        end += config.min_round_time if _has_quorum(round) else config.max_round_train_time
        end = max(end, now)
    if run.state is RunState.ROUND_WITNESS or round.attestations < round.elected:
        end = max(end + config.round_witness_time, now)
    rounds_left = max(run.draining - 1, 0)
    if round.attestations and not run.draining:
        rounds_left = max(1, config.overlap + run.is_audited)  # drain rounds, if it is the last one
    return end + rounds_left * (config.max_round_train_time + config.round_witness_time)


def last_member(run: Run, members: Members, model: Model) -> int | None:
    """Return the seat of the only member that can still attest the epoch's steps, or None.

    If the epoch ends while this member is absent, the steps are lost. Return None if the epoch has
    made no step, if a checkpoint has its steps, or if this member's attestation alone would not be
    accepted. Attested steps that no checkpoint has are at stake too, because a member that comes
    back after the epoch joins without a model.
    """
    healthy = members.mask(MemberState.HEALTHY)
    has_rounds = run.state.training or run.state is RunState.COOLDOWN
    if not has_rounds or run.step <= run.start_step or not unsaved_steps(run, model):
        return None
    if healthy.bit_count() != 1:
        return None
    (seat,) = bitmap.seats(healthy)
    return seat if committee.attests_alone(run, members, seat) else None


def becomes_last_member(run: Run, members: Members, seat: int, reachable: Set[bytes]) -> bool:
    """Return whether this member leaves last if all members of the epoch stop at the same moment.

    Each of them still sees the others, so the one with the smallest tier and the highest seat stays
    until they have left. False if its attestation alone would not be accepted then. `reachable` are
    the p2p keys of peers that answer.
    """
    if not run.state.training and run.state is not RunState.COOLDOWN:
        return False
    healthy = members.mask(MemberState.HEALTHY)
    others = [
        other
        for other in bitmap.seats(healthy & ~(1 << seat))
        if members.seats[other].p2p in reachable
    ]
    order = [(-members.seats[number].tier, number) for number in (*others, seat)]
    if not others or not bitmap.contains(healthy, seat) or max(order)[1] != seat:
        return False
    # Members that leave stay in the committee, because they have delivered.
    left = [
        replace(one, state=MemberState.WITHDRAWN, exited_height=run.current.height + 1)
        if number != seat and one.state is MemberState.HEALTHY
        else one
        for number, one in enumerate(members.seats)
    ]
    without = replace(
        members, seats=tuple(left), healthy=1 << seat, proven=members.proven | healthy
    )
    return committee.attests_alone(run, without, seat)


class LastMemberWait(NamedTuple):
    """The time after a deadline in which only the epoch's last member may end the epoch.

    `start` and `end` are chain times in unix seconds, and `seat` is that of the member.
    """

    seat: int
    start: int
    end: int

    def is_running(self, now: float) -> bool:
        """Return whether the deadline has passed, but not the wait."""
        return self.start <= now < self.end


def wait_for_last_member(run: Run, members: Members, model: Model) -> LastMemberWait | None:
    """Return when other members wait for the epoch's last member, or None if there is none.

    A present one ticks by itself. If another member ticked while it is absent, the epoch would end
    without the steps that it saved.
    """
    seat = last_member(run, members, model)
    if seat is None:
        return None
    drawn = replace(run, seed_slot=0)  # drawing a seed ends nothing, so it has no part in this wait
    deadline = next_deadline(drawn, members, model)
    return None if deadline is None else LastMemberWait(seat, deadline, deadline + HOLDERS_WAIT)


def _has_quorum(round: Round) -> bool:
    """Return whether a training round waits only for its minimum time and the next seed."""
    return round.attestations >= committee.round_quorum(round, round.elected)


def _smallest(holders: int, run: Run, members: Members) -> int:
    """Return the smallest tier of these seats: the first level that they hold.

    Return `run.levels` if there are none.
    """
    return min((members.seats[seat].tier for seat in bitmap.seats(holders)), default=run.levels)


def _epoch_is_safe(run: Run, members: Members, model: Model) -> bool:
    """Return whether the cooldown ends early: all held levels are attested and in the checkpoint.

    With audits it never does. Judges audit the last rounds and vote meanwhile.
    """
    if run.is_audited:
        return False
    held = range(_smallest(members.healthy, run, members), run.levels)
    attested = all(run.levels_attested >> level & 1 for level in held)
    return bool(held) and attested and run.attested_step == model.checkpoint_step == run.step


def trusted_finishers(run: Run, members: Members) -> int:
    """Return the finishers that an epoch relies on to hold the model, as a bitmap of seats.

    These are the established finishers, or all finishers if none is established.
    """
    return run.finishers & members.established or run.finishers


def newest_are_away(run: Run, members: Members, model: Model) -> bool:
    """Return whether no waiting member has the newest levels, which are in no checkpoint.

    Absent members may still have them until they are stopped. Nobody waits in a pause.
    """
    return (
        run.state in (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED)
        and run.model_source is ModelSource.PEERS
        and unsaved_levels(run, model) != 0
        and not trusted_finishers(run, members) & members.pending
    )


def expected(run: Run, members: Members) -> int:
    """Return the absent established members that the run waits for, as a bitmap of seats.

    The result is empty if enough established members wait to decide alone. It is also empty if one
    of them waits, unless its last epoch was undone. Members that the owner removed do not count.
    """
    here = members.established & members.pending
    if (
        run.state is not RunState.WAITING_FOR_MEMBERS
        or here.bit_count() >= committee.MIN_ESTABLISHED
        or here & ~_undone(run, members)
    ):
        return 0
    return wanted_established(members) & ~members.pending


def wanted_established(members: Members) -> int:
    """Return the established members that no authority removed or barred, as a bitmap."""
    seats = enumerate(members.seats)
    unwanted = bitmap.from_seats(number for number, seat in seats if seat.removed or seat.barred)
    return members.established & ~unwanted


def _undone(run: Run, members: Members) -> int:
    """Return the established members of the last epoch if its steps were undone, else none."""
    undone = run.epoch_started_at and members.judged and run.step == run.start_step
    return members.judges & members.established if undone else 0


def waits_a_day(run: Run, members: Members, model: Model | None = None) -> bool:
    """Return whether the run waits up to a day before the next epoch.

    The epoch would replace levels that only absent members hold.
    """
    if run.state is not RunState.WAITING_FOR_MEMBERS:
        return False
    if run.epoch_started_at and expected(run, members):
        return True
    if model is None or not _unsaved_away(run, members, model):
        return False
    return not trusted_finishers(run, members) & members.pending


def waits_for_holder(run: Run, members: Members, model: Model) -> bool:
    """Return whether the run waits without limit until a holder returns.

    Only newcomers wait, and their epoch would replace levels that no checkpoint has. Only the owner
    may do that.
    """
    waiting = run.state is RunState.WAITING_FOR_MEMBERS
    known = (run.finishers | members.established) & members.pending
    return waiting and not known and _unsaved_away(run, members, model)


def _unsaved_away(run: Run, members: Members, model: Model) -> bool:
    """Return whether only absent trusted finishers hold a level that no checkpoint has."""
    first = _smallest(trusted_finishers(run, members), run, members)
    return run.model_source is ModelSource.PEERS and bool(_missing(run, members, model, first))


def _missing(run: Run, members: Members, model: Model, first: int) -> list[int]:
    """Return the levels from `first` on whose newest contents are neither in a checkpoint nor with
    a waiting trusted finisher.
    """
    here = _smallest(trusted_finishers(run, members) & members.pending, run, members)
    unsaved = unsaved_levels(run, model)
    return [level for level in range(first, here) if bitmap.contains(unsaved, level)]


TICK_STEP = 2.0  # seconds
_TICK_RANKS = 15


def tick_order(run: Run, members: Members) -> list[int]:
    """Return the seats that may tick, in order. Each state has a different order, to share fees."""
    if run.state is RunState.WAITING_FOR_MEMBERS:
        mask = members.pending
    else:
        mask = run.current.roster & members.mask(MemberState.HEALTHY)
    candidates = list(bitmap.seats(mask))
    purpose = b"tick" + bytes([run.state]) + run.state_started_at.to_bytes(8, "little")
    return [
        candidates[rank] for rank in committee.order(run.current.seed, purpose, len(candidates))
    ]


def tick_delay(rank: int) -> float:
    """Return the seconds after the deadline at which a rank in `tick_order` tries.

    The delay is bounded, so that one member always tries.
    """
    return TICK_STEP * min(rank, _TICK_RANKS)
