"""Conviction: which members may be dropped for not delivering a level, as in the program.

Only holders of a level can tell whether it was delivered, so a quorum of all witnesses is not
enough. The judges are witnesses that showed the level in an earlier epoch. Otherwise two newcomers
that declare a tier could convict its only other holder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aftermath.rules import bitmap
from aftermath.rules.committee import quorum, round_quorum
from aftermath.rules.consensus import scores
from aftermath.rules.members import Members
from aftermath.rules.run import Attestation, Run
from aftermath.rules.state import MemberState

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
    """Return the suspects (a bitmap) that attestations of the last closed round convict."""
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
    held = {one.seat: one.participation for one in remaining}

    def convicted(seat: int) -> bool:
        return any(
            _lacks(run, members, held, seat, level)
            for level in range(members.seats[seat].tier, run.levels)
        )

    return bitmap.from_seats(
        seat for seat in bitmap.seats(suspects(run, members) & owing) if convicted(seat)
    )


def _lacks(run: Run, members: Members, held: Mapping[int, int], accused: int, level: int) -> bool:
    """Return whether enough established holders of a level did not receive it from the accused."""
    established = bitmap.seats(members.established & run.began)
    holders = {seat for seat in established if members.seats[seat].tier <= level}
    judges = holders & held.keys()
    without = sum(not bitmap.contains(held[seat], accused) for seat in judges)
    # The accused counts as a judge if it is established. One judge convicts alone only if the level
    # has no other established holder. Otherwise a quorum of these holders must agree.
    return without >= max(quorum(len(judges | (holders & {accused}))), min(2, len(holders)))
