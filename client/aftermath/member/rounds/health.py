"""Report members that did not deliver, so that the run stops waiting for them.

A member is reported if a quorum of witnesses missed its result. It is also reported if it often
missed a level and a quorum of that level's holders agrees (`rules.eviction`). Members report in a
seeded order, so one report is enough. No member reports itself.
"""

from __future__ import annotations

from aftermath.coordinator.errors import SETTLED, Refusal, Refused
from aftermath.coordinator.ports import Coordinator
from aftermath.events import event_types
from aftermath.member.ports import Ports
from aftermath.member.retry import Duty
from aftermath.rules import bitmap, eviction
from aftermath.rules.committee import round_quorum
from aftermath.rules.consensus import left_out, scores
from aftermath.rules.deadlines import tick_delay, tick_order
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState


def unseen(run: Run, members: Members) -> int:
    """Return the healthy members (a bitmap) whose result no quorum attested in the last closed
    round.
    """
    closed = run.current.height - 1
    owed = run.round(run.config.judged(closed))
    attesting = run.round(closed)
    if owed is None or attesting is None or not owed.batch:
        return 0
    return owed.roster & ~attesting.attested & members.mask(MemberState.HEALTHY)


class AbsenceReports:
    """Tracks the members that this member excused in an epoch, until their next result."""

    def __init__(self) -> None:
        self._excused = 0

    async def undelivered(self, coordinator: Coordinator, run: Run, members: Members) -> int:
        """Return the members (a bitmap) that may be dropped.

        A quorum of witnesses missed their results, or too many holders missed their levels.
        """
        missing = unseen(run, members)
        attesting = run.round(run.current.height - 1)
        if attesting is None or not (missing or self._excused or eviction.suspects(run, members)):
            return 0
        attestations = await coordinator.attestations(attesting)
        votes_by_member = scores(attestations)
        needed = round_quorum(attesting, attesting.elected)
        self._excused &= ~bitmap.from_seats(
            member for member, votes in votes_by_member.items() if votes >= needed
        )
        missing &= left_out(attesting, attestations, run, members)
        # If no result arrived but members that owe one attested, they are alive and something
        # delayed all of them. Excuse them, or the only member without a share could have all
        # holders dropped. Excuse a member only once until its result is seen again, or it could
        # withhold its share in every round by attesting.
        held_up = (
            missing
            if not votes_by_member and any(bitmap.contains(missing, a.seat) for a in attestations)
            else 0
        )
        excused = held_up & ~self._excused
        self._excused |= excused
        return missing & ~excused | eviction.incomplete(run, members, attestations)


async def report_undelivered(ports: Ports, absences: AbsenceReports, run: Run, seat: int) -> None:
    """Report members that did not deliver, at this member's turn, unless they are reported."""
    members = ports.feed.members
    try:
        missing = await absences.undelivered(ports.coordinator, run, members)
    except Refused:
        return  # the run is far ahead and no longer stores that round
    reporters = [other for other in tick_order(run, members) if not bitmap.contains(missing, other)]
    if not missing or seat not in reporters:
        return
    await ports.clock.sleep(tick_delay(reporters.index(seat)))
    missing &= ports.feed.members.mask(MemberState.HEALTHY)

    def current() -> bool:
        now = ports.feed.run
        return (
            now.epoch == run.epoch
            and now.state.training
            and now.current.height == run.current.height
        )

    if not missing or not current():
        return
    duty = Duty(
        ports,
        "a report of members that did not deliver",
        still_wanted=current,
        done_if=SETTLED | {Refusal.NOT_A_MEMBER},
    )
    if await duty.fulfil(lambda: ports.coordinator.health_check(missing)):
        ports.events.emit(
            event_types.Dropped(seats=list(bitmap.seats(missing)), height=run.current.height)
        )
