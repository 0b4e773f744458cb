"""Reporting members that did not deliver, so that the run stops waiting for them.

Choices:
- only what a quorum of witnesses did without counts, or often a quorum of a level's holders (`rules.conviction`);
  members take turns in a seeded order, so that one report suffices; nobody reports itself;
- a round without anybody's result accuses nobody if some who owe one attested that themselves: they live, and what
  held them all up (machines that slept, a line that was cut) is over. Else the one member that had nothing to train
  would have all others dropped, and the epoch would end without those who hold the model.
- it does so once: a member is excused again only after a result of it was seen. One that withholds its share where
  rounds are of one member's could else do so in every round, by attesting them. So two stalls in a row do accuse.
"""

from __future__ import annotations

from aftermath.coordinator.errors import SETTLED, Refusal, Refused
from aftermath.coordinator.ports import Coordinator
from aftermath.member.persist import Duty
from aftermath.member.ports import Ports
from aftermath.rules import bitmap, conviction
from aftermath.rules.committee import quorum
from aftermath.rules.consensus import left_out, scores
from aftermath.rules.deadlines import TICK_STEP, tick_order
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState
from aftermath.watch import kinds


def unseen(run: Run, members: Members) -> int:
    """Bitmap of the healthy members whose result no quorum of the last closed round's witnesses saw."""
    closed = run.current.height - 1
    owed, attesting = run.round(run.config.judged(closed)), run.round(closed)
    if owed is None or attesting is None or not owed.batch:
        return 0
    return owed.roster & ~attesting.attested & members.mask(MemberState.HEALTHY)


class Excuses:
    """Whom this member excused in an epoch, and saw no result of since."""

    def __init__(self) -> None:
        self._given = 0

    async def undelivered(self, coordinator: Coordinator, run: Run, members: Members) -> int:
        """Those of the unseen that a quorum of witnesses did without, and whose levels too many of the holders did:
        only they may be dropped.
        """
        missing, attesting = unseen(run, members), run.round(run.current.height - 1)
        if attesting is None or not (missing or self._given or conviction.suspects(run, members)):
            return 0
        attestations = await coordinator.attestations(attesting)
        seen = scores(attestations)
        needed = quorum(attesting.elected)
        self._given &= ~bitmap.from_seats(member for member, votes in seen.items() if votes >= needed)
        missing &= left_out(attesting, attestations, run, members)
        held_up = missing if not seen and any(bitmap.contains(missing, a.seat) for a in attestations) else 0
        excused = held_up & ~self._given
        self._given |= excused
        return missing & ~excused | conviction.incomplete(run, members, attestations)


async def report_undelivered(ports: Ports, excuses: Excuses, run: Run, seat: int) -> None:
    """Have those dropped that did not deliver, when it is our turn and nobody did it before us."""
    members = ports.feed.members
    try:
        missing = await excuses.undelivered(ports.coordinator, run, members)
    except Refused:
        return  # the run is far ahead: that round is no longer stored
    reporters = [other for other in tick_order(run, members) if not bitmap.contains(missing, other)]
    if not missing or seat not in reporters:
        return
    await ports.clock.sleep(TICK_STEP * reporters.index(seat))
    missing &= ports.feed.members.mask(MemberState.HEALTHY)

    def current() -> bool:
        now = ports.feed.run
        return now.epoch == run.epoch and now.state.training and now.current.height == run.current.height

    if not missing or not current():
        return
    duty = Duty(
        ports, "a report of members that did not deliver", wanted=current, done_if=SETTLED | {Refusal.NOT_A_MEMBER}
    )
    if await duty.fulfil(lambda: ports.coordinator.health_check(missing)):
        ports.events.emit(kinds.Dropped(seats=list(bitmap.seats(missing)), height=run.current.height))
