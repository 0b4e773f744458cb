"""Availability: which witnesses judge a level, and which levels every witness must fetch.

Witnesses that hold a level attest who delivered it, so that every applied result was available to
the holders that need it. Everything here depends only on what is fixed when the round begins, so
all members compute the same answer at any time.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_WITNESSES, Round, Run

# Half of the witnesses that a round can have. This number of judges can decide alone.
MANY = MAX_WITNESSES // 2


def may_judge(run: Run, members: Members, level: int) -> int:
    """Return the seats (a bitmap) whose attestations count for a level if they hold it."""
    known = run.levels_established >> level & 1
    return members.judges if known else (1 << bitmap.MAX_MEMBERS) - 1


def drawn(header: Round, run: Run, members: Members) -> tuple[int, ...]:
    """Return the seats that witness a round if nobody leaves, in shuffle order."""
    alone = header.established and header.roster & members.judges
    among = members.judges if alone else header.began
    in_order = (seat for seat in committee.in_order(header, committee.WITNESS, among))
    most = committee.wanted_witnesses(header, run.config.witness_nodes)
    return tuple(islice((seat for seat in in_order if bitmap.contains(header.roster, seat)), most))


def judged_by(header: Round, run: Run, members: Members) -> dict[int, frozenset[int]]:
    """Return the drawn judges of each level that its holders judge.

    The last level is left out, because every member holds it.
    """
    seats = drawn(header, run, members)

    def holders(level: int, among: tuple[int, ...]) -> frozenset[int]:
        judges = may_judge(run, members, level)
        return frozenset(
            s for s in among if bitmap.contains(judges, s) and members.seats[s].tier <= level
        )

    holders_by_level = {level: holders(level, seats) for level in range(run.levels - 1)}
    # If few of a level's judges are drawn, one person may own all of them and know this a round
    # ahead. That person could hide the level from the other holders, who would have to apply it and
    # would drop out. So all witnesses fetch and judge such a level (`fetched_by_all`).
    return {
        level: of
        for level, of in holders_by_level.items()
        if len(of) >= min(MANY, len(holders(level, header.members)))
    }


def fetched_by_all(
    judged: Collection[int], header: Round, run: Run, members: Members
) -> frozenset[int]:
    """Return the levels whose bytes every witness must have before it attests a result.

    These are the levels that are not in `judged`, except the last. Witnesses that do not hold a
    level serve its bytes without decoding them. A level with one holder is left out, because no
    other member needs it.
    """
    tiers = [members.seats[seat].tier for seat in bitmap.seats(header.began)]
    return frozenset(
        level
        for level in range(run.levels - 1)
        if level not in judged and sum(tier <= level for tier in tiers) > 1
    )
