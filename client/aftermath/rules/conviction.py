"""Who may be dropped because those who hold a level did without it, as the program finds it too.

Decided: most of the witnesses cannot tell whether a level was delivered that they do not hold, so a quorum of all does
not convict who hides one. Its judges are the witnesses that have shown in an epoch before that they hold the level;
what newcomers say convicts nobody, because two that declare a tier would be most of its holders where there is one
other. An established member that is accused has its own word among them, and one word alone convicts only where the
level has no other established holder. So who cannot get a level is never the one that is dropped for it, unless a
quorum of these holders say so. One round's trouble is nobody's guilt: a member must have failed in several rounds more
than it delivered in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aftermath.rules import bitmap
from aftermath.rules.committee import quorum
from aftermath.rules.consensus import scores
from aftermath.rules.members import Members
from aftermath.rules.run import Attestation, Run
from aftermath.rules.state import MemberState

OFTEN = 8
"""In so many rounds more than it delivered in a member must have failed to deliver whole levels."""


def suspects(run: Run, members: Members) -> int:
    """The healthy members (a bitmap) of the round judged last that often delivered no whole levels."""
    judged = run.round(run.config.judged(run.current.height - 1))
    if judged is None or not judged.batch:
        return 0
    roster = judged.roster & members.mask(MemberState.HEALTHY)
    return bitmap.from_seats(seat for seat in bitmap.seats(roster) if members.shown[seat] <= -OFTEN)


def incomplete(run: Run, members: Members, attestations: Collection[Attestation]) -> int:
    """Those of the suspects whom these attestations, of the round that closed last, convict."""
    judges, healthy = run.round(run.current.height - 1), members.mask(MemberState.HEALTHY)
    remaining = [one for one in attestations if bitmap.contains(healthy, one.seat)]
    if judges is None or len(remaining) < quorum(judges.elected):
        return 0
    recorded = bitmap.from_seats(
        seat for seat, votes in scores(attestations).items() if votes >= quorum(judges.elected)
    )
    owing = ~judges.attested | recorded  # whoever owed nothing is attested, and recorded by nobody
    held = {one.seat: one.participation for one in remaining}

    def convicted(seat: int) -> bool:
        return any(_lacks(run, members, held, seat, level) for level in range(members.seats[seat].tier, run.levels))

    return bitmap.from_seats(seat for seat in bitmap.seats(suspects(run, members) & owing) if convicted(seat))


def _lacks(run: Run, members: Members, held: Mapping[int, int], accused: int, level: int) -> bool:
    """Whether enough of a level's established holders did without what the accused owed."""
    established = bitmap.seats(members.established & run.began)
    holders = {seat for seat in established if members.seats[seat].tier <= level}
    judges = holders & held.keys()
    without = sum(not bitmap.contains(held[seat], accused) for seat in judges)
    return without >= max(quorum(len(judges | (holders & {accused}))), min(2, len(holders)))
