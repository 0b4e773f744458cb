"""Who does what in a round: one seeded shuffle, from which witnesses, verifiers and cooldown reporters follow.

Decided: Fisher-Yates over ranks driven by a 64-bit LCG (Knuth's MMIX constants), taking the *high* half of the state
because the low bits of such a generator have short periods. Each purpose starts from its own hash of the round's
seed, so knowing one order says nothing about another. `order[position] = rank`; a rank is the index of a seat among
those who began the epoch: whoever leaves moves nobody else, and can choose no order.

A seat costs little, and a third of the witnesses can stop a run or say that nobody else delivered. So where enough of
those in it are established, and hold all levels, the witnesses of a round are of these alone: newcomers, however many,
train and deliver for an epoch before they have a word. In warm-up all have one, because it waits for them too. What a
level contains at the end of an epoch is what those say, too, who had shown it before, if one of them has delivered
and stayed.
"""

from __future__ import annotations

import hashlib
from itertools import islice

from aftermath.base.numbers import U64_MAX
from aftermath.rules import bitmap
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_VERDICTS, MAX_WITNESSES, Round, Run
from aftermath.rules.state import Committee, MemberState

WITNESS = b"witness"
COMMITTEE = b"committee"
DATA = b"data"
COOLDOWN = b"cooldown"

ENOUGH = 3
"""So many established members are the least of which one alone decides nothing."""

_MULTIPLIER = 6364136223846793005
_INCREMENT = 1442695040888963407


def purpose_state(seed: int, purpose: bytes) -> int:
    """The generator's first state for one purpose: the first 8 bytes of sha256(seed as 8 LE bytes, purpose)."""
    digest = hashlib.sha256(seed.to_bytes(8, "little") + purpose).digest()
    return int.from_bytes(digest[:8], "little")


def shuffle(state: int, n: int) -> list[int]:
    """A permutation of 0..n-1 from a generator state: `result[position]` is the rank that stands there.

    Positions are drawn in ascending order, so that whoever asks for the first few need not draw the others.
    """
    order = list(range(n))
    for place in range(n):
        state = (_MULTIPLIER * state + _INCREMENT) & U64_MAX
        other = place + (state >> 32) % (n - place)
        order[place], order[other] = order[other], order[place]
    return order


def order(seed: int, purpose: bytes, n: int) -> list[int]:
    """The ranks of `n` members in the seeded order of one purpose."""
    return shuffle(purpose_state(seed, purpose), n)


def positions(seed: int, purpose: bytes, n: int) -> list[int]:
    """The inverse of `order`: the position of each rank."""
    result = [0] * n
    for position, rank in enumerate(order(seed, purpose, n)):
        result[rank] = position
    return result


def ordered(header: Round, purpose: bytes) -> tuple[int, ...]:
    """The seats of those who began the epoch in a round's order of one purpose, whoever has left since."""
    return in_order(header, purpose, header.began)


def in_order(header: Round, purpose: bytes, among: int) -> tuple[int, ...]:
    """The seats of a bitmap, in a round's order of one purpose."""
    seats = tuple(bitmap.seats(among))
    return tuple(seats[rank] for rank in order(header.seed, purpose, len(seats)))


def quorum(elected: int) -> int:
    """How many of the elected must agree: two thirds, rounded up, and never none."""
    return max(1, -(-2 * elected // 3))


def enough(run: Run, members: Members, seated: int) -> bool:
    """Whether the witnesses of a round that begins with these members, `seated`, are of the established ones alone."""
    whole = run.levels_established == (1 << run.levels) - 1
    return whole and (members.judges & seated).bit_count() >= ENOUGH


def electors(header: Round, members: Members) -> int:
    """Of whom the witnesses of a round are elected: of all, once no established one is left in it. A bitmap."""
    left = members.judges & _seated(header, members)
    return members.judges if header.established and left else header.began


def _seated(header: Round, members: Members) -> int:
    """Those of a running round who have attested it or still can."""
    return header.roster & (header.attested | members.healthy)


def witnesses(header: Round, members: Members) -> tuple[int, ...]:
    """The seats that witness a round while it is running, in shuffle order.

    They are the first of the electors that have attested or still can: who leaves makes room for the next in the order.
    """
    seated, ordered_seats = _seated(header, members), in_order(header, WITNESS, electors(header, members))
    return tuple(islice((seat for seat in ordered_seats if bitmap.contains(seated, seat)), header.elected))


def jury(run: Run, members: Members, closed: Round) -> int:
    """A quorum of so many of a closed round's witnesses drops somebody: of as many as could be elected, where the
    config asks for fewer. Of few, chance may make all one person's.
    """
    if not run.config.witness_nodes:
        return closed.elected
    left = closed.roster & members.healthy & members.judges
    among = closed.roster & members.judges if closed.established and left else closed.roster
    return max(closed.elected, min(among.bit_count(), MAX_WITNESSES))


def verifier_count(clients: int, verification_percent: int) -> int:
    """How many members verify instead of train: no more than verdicts are stored, and at least one always trains."""
    return min(clients * verification_percent // 100, max(clients - 1, 0), MAX_VERDICTS)


def roles(header: Round, verification_percent: int) -> dict[int, Committee]:
    """What each seat of the roster does in this round."""
    in_order = [seat for seat in ordered(header, COMMITTEE) if bitmap.contains(header.roster, seat)]
    verifiers = verifier_count(len(in_order), verification_percent)
    return {
        seat: Committee.VERIFIER if position < verifiers else Committee.TRAINER
        for position, seat in enumerate(in_order)
    }


def _is_seated(members: Members, seat: int) -> bool:
    """Who has shown what it holds: in this epoch, or before, if it did not leave before the first round was over."""
    member = members.seats[seat]
    took_part = member.state is MemberState.HEALTHY or member.exited_height > 0
    return bitmap.contains(members.proven, seat) or (took_part and bitmap.contains(members.established, seat))


def _stayed(members: Members, seat: int, last: int) -> bool:
    """Whether a member was there when the cooldown began, after the `last` round."""
    member = members.seats[seat]
    return member.state is MemberState.HEALTHY or member.exited_height > last


def _first_withheld(run: Run, members: Members) -> int:
    """Return the first level that a missing established member holds: it was dropped, or was in the last epoch and not
    in this one. Past the last level if none is missing, or too few are established to decide alone.
    """
    if members.established.bit_count() < ENOUGH or not members.judges:
        return run.levels
    gone = members.judges & (members.mask(MemberState.DROPPED) | members.mask(MemberState.RESTARTED))
    absent = members.established & ~run.current.began
    recent = [seat for seat in bitmap.seats(absent) if members.seats[seat].last_epoch + 1 >= run.epoch]
    return min((members.seats[seat].tier for seat in (*bitmap.seats(gone), *recent)), default=run.levels)


def cooldown_electees(run: Run, members: Members, level: int) -> tuple[int, ...]:
    """The committee of a level in cooldown, by place: the first 32, in that order, who have shown that they hold it, in
    this epoch or before; only before, where one of these has delivered and was there when the cooldown began. Who they
    are does not change, whoever leaves. Nobody, if newcomers would speak of a level that a missing member holds.
    """
    holders = bitmap.from_seats(seat for seat in bitmap.seats(run.current.began) if members.seats[seat].tier <= level)
    spoke = bitmap.seats(members.judges & members.proven & holders)
    heard = any(_stayed(members, seat, run.current.height) for seat in spoke)
    if not heard and level >= _first_withheld(run, members):
        return ()
    among = members.judges & holders if heard else holders
    in_order = (seat for seat in ordered(run.current, COOLDOWN) if bitmap.contains(among, seat))
    return tuple(islice((seat for seat in in_order if _is_seated(members, seat)), MAX_WITNESSES))


def levels_to_attest(run: Run, members: Members, seat: int) -> tuple[int, ...]:
    """The levels `seat` is elected to report at cooldown, ascending: none, if it has not delivered in this epoch."""
    if not bitmap.contains(members.proven, seat):
        return ()
    return tuple(level for level in range(run.levels) if seat in cooldown_electees(run, members, level))
