"""Open cases about results of one epoch, as one member reads them from the chain.

Reports when a case opens and when it was decided. Does not vote.
"""

from __future__ import annotations

from collections.abc import Mapping

from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.events import event_types
from aftermath.member.ports import Ports
from aftermath.member.rounds.epoch import Epoch
from aftermath.member.rounds.judge import Key
from aftermath.rules import bitmap
from aftermath.rules.audits import Case
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState


class OpenCases:
    """The open cases of one epoch."""

    def __init__(self, ports: Ports, epoch: Epoch) -> None:
        self._ports = ports
        self._epoch = epoch
        self._cases: dict[Key, Case] = {}
        """Cases that were open when read, until their decision is reported."""
        self._gone: set[Key] = set()
        """Cases that were no longer open when read again, so they were decided."""
        self._ejected_before: dict[Key, int] = {}
        """Bitmap of the members that were ejected when a case was first read."""
        self._read_at = -1
        """Height of the round in which the cases were last read."""

    @property
    def undecided(self) -> Mapping[Key, Case]:
        """Return the cases on which a jury may still vote, when they were last read."""
        return {key: case for key, case in self._cases.items() if key not in self._gone}

    async def read(self, run: Run) -> None:
        """Read the open cases once per round, and report the new ones."""
        # Once per round is enough: votes stay open for VOTING_ROUNDS more. In the cooldown the
        # height stays the same, so read after every change of the run.
        if self._read_at == run.current.height and run.state.training:
            return
        try:
            cases = await self._ports.coordinator.cases()
        except (Refused, Unavailable):
            return
        self._read_at = run.current.height
        now = {(case.height, case.target): case for case in cases if case.is_open(run)}
        before = {key: case for key, case in self._cases.items() if case.is_open(run)}
        for key in now.keys() - before.keys():
            self._report_opening(now[key])
            self._ejected_before[key] = self._ports.feed.members.mask(MemberState.EJECTED)
        # `report_decisions` reports these once this member sees the ejection.
        self._gone |= before.keys() - now.keys()
        self._cases = before | now

    def report_decisions(self) -> None:
        """Report each case whose target or auditor was ejected since it was first read.

        Another reason for an ejection looks the same.
        """
        for key, case in list(self._cases.items()):
            loser = self._ejected_since(key, case)
            if loser is not None:
                del self._cases[key]
                self._report_decision(case, loser)

    def _ejected_since(self, key: Key, case: Case) -> int | None:
        """Return the seat of a case's target or auditor if it was ejected since, or None."""
        seats = self._ports.feed.members.seats
        for seat in (case.target, case.auditor):
            was_ejected = bitmap.contains(self._ejected_before[key], seat)
            if seats[seat].state is MemberState.EJECTED and not was_ejected:
                return seat
        return None

    def _report_opening(self, case: Case) -> None:
        self._ports.events.emit(
            event_types.CaseOpened(
                epoch=self._epoch.number,
                height=case.height,
                seat=case.target,
                auditor=case.auditor,
            )
        )

    def _report_decision(self, case: Case, loser: int) -> None:
        self._ports.events.emit(
            event_types.CaseDecided(
                epoch=self._epoch.number,
                height=case.height,
                seat=case.target,
                loser=loser,
            )
        )
