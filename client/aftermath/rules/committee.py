"""Committees: a seeded shuffle elects a round's witnesses and cooldown reporters.

Each purpose starts from its own hash of the round's seed, so its order is independent of the
others. `order[position] = rank`. A rank is the index of a seat among the members that began the
epoch, so a member that leaves does not move the others.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import islice

from aftermath.base.bounded import U64_MAX
from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_WITNESSES, Round, Run
from aftermath.rules.state import MemberState, RunState

WITNESS = b"witness"
DATA = b"data"
COOLDOWN = b"cooldown"

MIN_ESTABLISHED = 3
"""Minimum number of established witnesses, so that no single one decides alone."""

_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407


def purpose_state(seed: int, purpose: bytes) -> int:
    """Return the first 8 bytes of sha256(seed as 8 LE bytes, purpose): a generator's first
    state.
    """
    digest = hashlib.sha256(seed.to_bytes(8, "little") + purpose).digest()
    return int.from_bytes(digest[:8], "little")


def shuffle(state: int, n: int) -> list[int]:
    """Return a permutation of 0..n-1: `result[position]` is the rank at that position.

    Fisher-Yates with a 64-bit LCG (Knuth's MMIX constants). Positions are drawn in ascending order,
    so a caller that needs the first few can stop early.
    """
    order = list(range(n))
    for place in range(n):
        state = (_MULTIPLIER * state + _INCREMENT) & U64_MAX
        # The low bits of an LCG have short periods: use the high half of the state.
        other = place + (state >> 32) % (n - place)
        order[place], order[other] = order[other], order[place]
    return order


def order(seed: int, purpose: bytes, n: int) -> list[int]:
    """Return the ranks of `n` members in the seeded order of one purpose."""
    return shuffle(purpose_state(seed, purpose), n)


def ordered(header: Round, purpose: bytes) -> tuple[int, ...]:
    """Return the seats that began the epoch, in a round's order of one purpose."""
    return in_order(header, purpose, header.began)


def in_order(header: Round, purpose: bytes, among: int) -> tuple[int, ...]:
    """Return the seats of a bitmap, in a round's order of one purpose."""
    seats = tuple(bitmap.seats(among))
    return tuple(seats[rank] for rank in order(header.seed, purpose, len(seats)))


def quorum(elected: int) -> int:
    """Return how many of the elected members must agree: two thirds, rounded up, at least one."""
    return max(1, -(-2 * elected // 3))


def round_quorum(header: Round, elected: int) -> int:
    """Return how many of the `elected` witnesses of a round must agree.

    If only established members witness, at least two must agree: a single one would otherwise
    decide who delivered and who is dropped.
    """
    return max(quorum(elected), 2 if header.established else 1)


def wanted_witnesses(header: Round, nodes: int) -> int:
    """Return how many witnesses a round with this number of electors elects.

    `nodes` is the config's `witness_nodes`. If only established members witness, one alone is not a
    quorum, so the program elects at least two.
    """
    least = 2 if header.established else 1
    return min(max(nodes, least), MAX_WITNESSES) if nodes else MAX_WITNESSES


def electors(header: Round, members: Members) -> int:
    """Return the seats (a bitmap) that may be elected as witnesses of a round.

    A seat costs little, and a third of the witnesses can stop a run or deny every result. So
    newcomers train for an epoch before they witness, if `MIN_ESTABLISHED` established members that
    hold all levels begin the epoch. If fewer than two of them are left, the epoch ends.
    """
    return members.judges if header.established else header.began


def _seated(header: Round, members: Members) -> int:
    """Return the seats that have attested the running round or still can, as a bitmap."""
    return header.roster & (header.attested | members.healthy)


def witnesses(header: Round, members: Members) -> tuple[int, ...]:
    """Return the seats that witness a round while it is running, in shuffle order.

    They are the first electors that have attested or still can. The next in the order replaces a
    member that leaves.
    """
    seated = _seated(header, members)
    ordered_seats = in_order(header, WITNESS, electors(header, members))
    return tuple(
        islice((seat for seat in ordered_seats if bitmap.contains(seated, seat)), header.elected)
    )


def drop_electorate(run: Run, members: Members, closed: Round) -> int:
    """Return the number of witnesses whose quorum may drop a member after a closed round.

    If the config elects fewer witnesses than possible, count as many as possible: one person may
    by chance own all of the few.
    """
    if not run.config.witness_nodes:
        return closed.elected
    among = closed.roster & electors(closed, members)
    return max(closed.elected, min(among.bit_count(), MAX_WITNESSES))


def _is_seated(members: Members, seat: int) -> bool:
    """Return whether a member counts as having shown the levels that it holds.

    It counts if it showed them in this epoch. It also counts if it showed them in an earlier epoch
    and did not leave before the first round of this epoch was over.
    """
    member = members.seats[seat]
    took_part = member.state is MemberState.HEALTHY or member.exited_height > 0
    return bitmap.contains(members.proven, seat) or (
        took_part and bitmap.contains(members.established, seat)
    )


def _stayed(members: Members, seat: int, last: int) -> bool:
    """Return whether a member was present when the cooldown began, after round `last`."""
    member = members.seats[seat]
    return member.state is MemberState.HEALTHY or member.exited_height > last


def _first_withheld(run: Run, members: Members) -> int:
    """Return the first level that a missing established member holds.

    Missing: it was dropped, or was in the last epoch and is not in this one. Return the number of
    levels if none is missing, or if too few members are established to decide alone.
    """
    if members.established.bit_count() < MIN_ESTABLISHED or not members.judges:
        return run.levels
    gone = members.judges & (
        members.mask(MemberState.DROPPED) | members.mask(MemberState.RESTARTED)
    )
    absent = members.established & ~run.current.began
    recent = [
        seat for seat in bitmap.seats(absent) if members.seats[seat].last_epoch + 1 >= run.epoch
    ]
    return min(
        (members.seats[seat].tier for seat in (*bitmap.seats(gone), *recent)), default=run.levels
    )


def cooldown_electees(run: Run, members: Members, level: int) -> tuple[int, ...]:
    """Return the committee of a level in cooldown: at most 32 seats, in shuffle order.

    Members qualify by showing the level in this epoch or before. If a member that showed it before
    this epoch delivered and stayed until the cooldown began, only such members qualify. The
    committee does not change when members leave. It is empty if newcomers would attest a level that
    a missing member holds.
    """
    holders = bitmap.from_seats(
        seat for seat in bitmap.seats(run.current.began) if members.seats[seat].tier <= level
    )
    delivering_judges = bitmap.seats(members.judges & members.proven & holders)
    judge_stayed = any(_stayed(members, seat, run.current.height) for seat in delivering_judges)
    if not judge_stayed and level >= _first_withheld(run, members):
        return ()
    among = members.judges & holders if judge_stayed else holders
    in_order = (seat for seat in ordered(run.current, COOLDOWN) if bitmap.contains(among, seat))
    return tuple(islice((seat for seat in in_order if _is_seated(members, seat)), MAX_WITNESSES))


def attests_alone(run: Run, members: Members, seat: int) -> bool:
    """Return whether this member's attestation alone is enough for all its levels.

    At the end of a cooldown, half of a level's committee is enough, and members that left still
    count in its size. More than half is needed if one of them left and this member is new to the
    level. Levels that are attested already need no statement.
    """
    if run.state is not RunState.COOLDOWN:
        # Predict `proven` at the start of the cooldown, assuming that the program finds that this
        # member delivered.
        will_be_proven = members.judges & members.healthy | 1 << seat
        members = replace(members, proven=members.proven | will_be_proven)
    known_before = bitmap.contains(members.established, seat)
    for level in range(members.seats[seat].tier, run.levels):
        if run.state is RunState.COOLDOWN and run.levels_attested >> level & 1:
            continue
        electees = cooldown_electees(run, members, level)
        others = [other for other in electees if other != seat]
        any_left = any(members.seats[other].state is not MemberState.HEALTHY for other in others)
        is_new = bool(run.levels_established >> level & 1) and not known_before
        if seat not in electees or 2 * len(others) + (any_left and is_new) > len(electees):
            return False
    return bitmap.contains(members.proven, seat)


def levels_to_attest(run: Run, members: Members, seat: int) -> tuple[int, ...]:
    """Return the levels that `seat` must attest in cooldown, ascending; empty if it did not
    deliver.
    """
    if not bitmap.contains(members.proven, seat):
        return ()
    return tuple(
        level for level in range(run.levels) if seat in cooldown_electees(run, members, level)
    )
