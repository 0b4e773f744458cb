"""Who came to a run, went, was dropped and came back, from its members' events: marks at the step where it happened.

Decided: a member that was dropped, or joined again without having left, is one that died; nobody else can
know why. What several members tell is marked once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from aftermath.watch import kinds
from aftermath.watch.lines import short
from aftermath.watch.reader import EventRecord


@dataclass(slots=True)
class _Member:
    processes: int = 0
    just_started: bool = False
    """Its process has started, and not found the run yet."""
    ended: bool = True
    """Its process said so, or others did."""
    away: bool = False
    step: int = 0
    seat: int | None = None


class Comings:
    """Takes events in the order in which they are read. `name` is what a member is called in marks."""

    def __init__(self, name: Callable[[EventRecord], str] = lambda told: short(told.about)) -> None:
        self.marks: list[tuple[int, str]] = []
        self.newest_step = 0
        self._members: dict[str, _Member] = defaultdict(_Member)
        self._names: dict[str, str] = {}
        self._name = name

    def step_of(self, wallet: str) -> int:
        """The last step of which a member has trained its share."""
        return self._members[wallet].step

    def take(self, told: EventRecord) -> None:
        """Learn from an event."""
        wallet, event = told.about.wallet, told.event
        member = self._members[wallet]
        self._names[wallet] = self._name(told)
        match event:
            case kinds.Started():
                self._starts(wallet, member)
                member.just_started = True
            case kinds.RunFound():
                if not member.just_started:  # only what is about this run was read
                    self._starts(wallet, member)
                member.just_started = False
            case kinds.Joined():
                member.seat = event.seat
            case kinds.Trained():
                self._trained(wallet, event.step, member, losing=event.loss is not None)
            case kinds.Left() | kinds.Finished() | kinds.Error():
                self._ends(wallet, event, member)
            case kinds.Dropped():
                for seat in event.seats:
                    self._lost(seat, "dropped")
            case kinds.Ejected():
                self._lost(event.seat, "ejected")
            case kinds.Kicked():
                self._lost(event.seat, "barred" if event.barred else "removed")
            case kinds.Rewound():
                self._mark(event.step, f"taken back from step {event.before}")

    def _starts(self, wallet: str, member: _Member) -> None:
        if not member.ended:
            self._mark(member.step, f"{self._names[wallet]} gone")
        member.away = member.processes > 0
        member.ended = False
        member.seat = None
        member.processes += 1

    def _trained(self, wallet: str, step: int, member: _Member, *, losing: bool) -> None:
        if member.away:
            self._mark(step, f"{self._names[wallet]} back")
        member.away, member.step = False, step
        if losing:
            self.newest_step = max(self.newest_step, step)

    def _ends(self, wallet: str, event: kinds.Event, member: _Member) -> None:
        if isinstance(event, kinds.Left) and not event.finished:
            self._mark(member.step, f"{self._names[wallet]} left")
        elif isinstance(event, kinds.Error):
            self._mark(member.step, f"{self._names[wallet]} failed")
        member.ended = True

    def _lost(self, seat: int, how: str) -> None:
        """Told of another member, which may be one whose events are not here."""
        wallet = next((wallet for wallet, member in self._members.items() if member.seat == seat), None)
        if wallet is None:
            self._mark(self.newest_step, f"member {seat} {how}")
            return
        member = self._members[wallet]
        if how != "dropped" or not member.ended:
            self._mark(member.step, f"{self._names[wallet]} {how}")
        member.ended = member.away = True

    def _mark(self, step: int, text: str) -> None:
        if (step, text) not in self.marks:
            self.marks.append((step, text))
