"""Which levels of the results of a round all its witnesses have to have, also those that do not hold them.

Decided: who delivers a level is said by its holders among the witnesses, and whoever cannot get it must not need it.
Where members are more than witnesses, few holders or none may be drawn, and those that are may be of one person, who
knows it a round ahead: what that one keeps from the other holders they would have to apply, and drop out of the run. So
where not all who judge a level are drawn, and not many, every witness has its bytes before it attests a result, and
hands them on, where more than one holds it; the level counts as the rest of the result does. Not having the level they
cannot read it, and need not: bytes that are no encoding are none for everybody who does.
Drawn means, if nobody leaves: by what is fixed when the round begins, so that everybody finds the same at any time.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice

from aftermath.rules import bitmap, committee
from aftermath.rules.members import Members
from aftermath.rules.run import MAX_WITNESSES, Round, Run

MANY = MAX_WITNESSES // 2


def may_judge(run: Run, members: Members, level: int) -> int:
    """Those whose word counts about who delivers a level, as in the program, if they hold it. A bitmap."""
    known = run.levels_established >> level & 1
    return members.judges if known else (1 << bitmap.MAX_MEMBERS) - 1


def drawn(header: Round, run: Run, members: Members) -> tuple[int, ...]:
    """The seats that witness a round if nobody leaves, in shuffle order."""
    alone = header.established and header.roster & members.judges
    among = members.judges if alone else header.began
    in_order = (seat for seat in committee.in_order(header, committee.WITNESS, among))
    most = min(run.config.witness_nodes or MAX_WITNESSES, MAX_WITNESSES)
    return tuple(islice((seat for seat in in_order if bitmap.contains(header.roster, seat)), most))


def judged_by(header: Round, run: Run, members: Members) -> dict[int, frozenset[int]]:
    """Which of those who judge a level are drawn as witnesses of a round, for each level whose holders say who delivers
    it; never for the last, which all hold.
    """
    seats = drawn(header, run, members)

    def holders(level: int, among: tuple[int, ...]) -> frozenset[int]:
        judges = may_judge(run, members, level)
        return frozenset(s for s in among if bitmap.contains(judges, s) and members.seats[s].tier <= level)

    found = {level: holders(level, seats) for level in range(run.levels - 1)}
    return {level: of for level, of in found.items() if len(of) >= min(MANY, len(holders(level, header.members)))}


def had_by_all(judged: Collection[int], header: Round, run: Run, members: Members) -> frozenset[int]:
    """The levels whose bytes each witness of a round has of what it attests: all but the last that are not `judged`,
    and that more than one of those hold who began the epoch; one alone would be waited for on nobody's behalf.
    """
    tiers = [members.seats[seat].tier for seat in bitmap.seats(header.began)]
    return frozenset(
        level for level in range(run.levels - 1) if level not in judged and sum(tier <= level for tier in tiers) > 1
    )
