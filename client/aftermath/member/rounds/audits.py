"""Audits: replay the results drawn to this member, open cases, and vote on cases of others.

A verdict that comes too late has no effect, so each one is bound to the rounds in which the program
accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.start_weights import StartWeights
from aftermath.base.concurrency import first_of
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.events import event_types
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.retry import Duty
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.judge import AuditedResult, Judge, Judgement, Key
from aftermath.replica.memory import is_out_of_memory
from aftermath.rules import bitmap
from aftermath.rules.audits import (
    OPENING_ROUNDS,
    VOTING_ROUNDS,
    Case,
    auditable_heights,
    drawn_results,
)
from aftermath.rules.run import RoundId, Run
from aftermath.rules.state import MemberState

Start = Callable[[Coroutine[Any, Any, None]], None]


class Audits:
    """The audits of one epoch for one member. Does nothing in a run without them."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        carried: CarriedOver,
        epoch: Epoch,
        start: Start,
        *,
        directory: Path | None,
        delay: float,
    ) -> None:
        """`start` starts a background task of the epoch. For `delay` see `Judge`."""
        self._ports = ports
        self._compute = workers.compute
        self._epoch = epoch
        self._results = carried.results
        self._own_state = carried.own_state
        self._start = start
        self._enabled = bool(epoch.rules.verification_percent)
        self._window = epoch.rules.overlap + OPENING_ROUNDS + VOTING_ROUNDS
        """Number of rounds after a result's in which it may still be judged."""
        self._weights = StartWeights(directory, self._window + 1)
        self._judge = Judge(ports, role, workers, carried, epoch, self._weights, delay=delay)
        self._audited: dict[Key, AuditedResult] = {}
        self._drawn: set[int] = set()
        """Heights with a drawn result."""
        self._begun: set[tuple[bool, Key]] = set()
        """Audits or probes (False) and votes (True) that were begun."""
        self._cases: dict[Key, Case] = {}
        """The open cases when they were last read."""

    # --- what the rounds report

    async def begin_round(self, height: int) -> None:
        """Keep the weights that round `height` is trained from, and drop what no audit needs."""
        if not self._enabled:
            return
        newest_undrawn = height - self._epoch.rules.overlap - OPENING_ROUNDS
        needed = {
            one
            for one in range(height - self._window, height + 1)
            if one in self._drawn or one >= newest_undrawn
        }
        self._weights.retain(needed)
        self._audited = {key: kept for key, kept in self._audited.items() if key[0] in needed}
        private = [kept.commitment.private for kept in self._audited.values()]
        self._own_state.keep_lent({root for one in private for root in (one.before, one.after)})
        params = self._epoch.start.replica.params
        try:
            await self._compute(lambda: self._weights.keep(height, params))
        except Exception as error:
            if not (is_out_of_memory(error) or isinstance(error, OSError | SafetensorError)):
                raise
            message = f"this member cannot audit round {height}: its weights were not kept: {error}"
            self._ports.events.emit(event_types.Warning(message=message, until="trained"))

    def applied(self, height: int, results: Sequence[Candidate]) -> None:
        """Keep the accepted results of a round until they can no longer be judged."""
        plan = self._results.plan(height)
        if not self._enabled or plan is None:
            return
        for candidate in results:
            result = AuditedResult(plan, candidate)
            self._audited[result.key] = result

    def begin_spare_time(self) -> None:
        """Replay from now on, because this member's share is announced."""
        self._judge.spare_time.begin()

    def end_spare_time(self) -> None:
        """Stop replaying, because a round begins."""
        self._judge.spare_time.end()

    # --- duties

    async def follow(self) -> None:
        """Begin each audit and vote that this member owes, until cancelled."""
        feed = self._ports.feed
        while self._enabled:
            run = feed.run
            if self._epoch.is_running(run):
                self._begin_audits(run)
                await self._follow_cases(run)
            await feed.after(run.seq)

    def _begin_audits(self, run: Run) -> None:
        for height in auditable_heights(run):
            drawn = drawn_results(run, self._ports.feed.members, height)
            if drawn:
                self._drawn.add(height)
            for target, auditor in drawn.items():
                result = self._audited.get((height, target))
                if result is None or target == self._seat or not self._is_new(False, result.key):
                    continue
                self._start(self._probe(result))
                if auditor == self._seat:
                    self._start(self._audit(result))

    async def _follow_cases(self, run: Run) -> None:
        """Report new and decided cases, and begin this member's votes."""
        try:
            cases = await self._ports.coordinator.cases()
        except (Refused, Unavailable):
            return
        now = {(case.height, case.target): case for case in cases if case.is_open(run)}
        before, self._cases = self._cases, now
        for key in before.keys() - now.keys():
            self._report_decision(before[key])
        for key, case in now.items():
            if key not in before:
                self._report_opening(case)
            result = self._audited.get(key)
            if (
                result is not None
                and result.plan.header.seed == case.seed
                and case.may_vote(run, self._seat)
                and self._is_new(True, key)
            ):
                self._start(self._vote(result, case))

    def _report_opening(self, case: Case) -> None:
        self._ports.events.emit(
            event_types.CaseOpened(
                epoch=self._epoch.number,
                height=case.height,
                seat=case.target,
                auditor=case.auditor,
            )
        )

    def _report_decision(self, case: Case) -> None:
        """Report who lost a case that is no longer open, if a jury decided it."""
        seats = self._ports.feed.members.seats
        for seat in (case.target, case.auditor):
            if seats[seat].state is MemberState.EJECTED:
                self._ports.events.emit(
                    event_types.CaseDecided(
                        epoch=self._epoch.number,
                        height=case.height,
                        seat=case.target,
                        loser=seat,
                    )
                )
                return

    def _is_new(self, votes: bool, key: Key) -> bool:
        """Record that a duty has begun. Return False if it had begun already."""
        is_new = (votes, key) not in self._begun
        self._begun.add((votes, key))
        return is_new

    async def _probe(self, result: AuditedResult) -> None:
        """Check that a member serves the state of a drawn result."""
        # One member cannot tell a refusal from a broken connection, so nobody is accused of it. But
        # if a quorum of witnesses gets no answer for a whole round, it attests no more results of
        # this member, which is then dropped like one that delivers nothing.
        height, seat = result.key

        async def is_served() -> bool:
            await self._judge.probe(result)
            return True

        async def is_not() -> bool:
            await self._ports.feed.until(lambda run: not self._may_open(run, height))
            return False

        if not await first_of(is_served(), is_not()) and self._is_heard(seat, height):
            self._results.stop_attesting(seat, height)

    def _is_heard(self, seat: int, since: int) -> bool:
        """Return whether a member in the running epoch has announced a result after a round."""
        run = self._ports.feed.run
        later = range(since + 1, run.current.height + 1)
        is_here = self._epoch.is_running(run) and bitmap.contains(run.current.roster, seat)
        return is_here and any(seat in self._results.announced(height) for height in later)

    def _may_open(self, run: Run, height: int) -> bool:
        """Return whether cases about results of a round may be opened."""
        return self._epoch.is_running(run) and height in auditable_heights(run)

    async def _audit(self, result: AuditedResult) -> None:
        """Judge a result that was drawn to this member. Open a case if it is false."""
        height = result.commitment.height

        def may_open(run: Run) -> bool:
            return self._may_open(run, height)

        judgement = await self._judged(result, may_open)
        if judgement.verdict is AuditVerdict.MISMATCH:
            await self._lend(result, judgement)
            await self._verify(result, may_open, is_vote=False, mismatch=True)

    async def _lend(self, result: AuditedResult, judgement: Judgement) -> None:
        """Serve to the jury what this auditor fetched of a state, if the member leaves now."""
        private = result.commitment.private
        evidence = judgement.evidence
        if evidence is not None:
            await self._own_state.lend(private.before, evidence.before)
            await self._own_state.lend(private.after, evidence.after)

    async def _vote(self, result: AuditedResult, case: Case) -> None:
        """Judge a disputed result and vote."""

        def may_vote(run: Run) -> bool:
            return self._epoch.is_running(run) and case.is_open(run)

        judgement = await self._judged(result, may_vote, case)
        if judgement.verdict is not None:
            mismatch = judgement.verdict is AuditVerdict.MISMATCH
            await self._verify(result, may_vote, is_vote=True, mismatch=mismatch)

    async def _judged(
        self, result: AuditedResult, wanted: Callable[[Run], bool], case: Case | None = None
    ) -> Judgement:
        """Judge a result while the judgement is wanted, and report it. `case`: for a vote on it."""
        lender = result.plan.seats[case.auditor].p2p if case is not None else None

        async def too_late() -> Judgement:
            await self._ports.feed.until(lambda run: not wanted(run))
            trouble = self._judge.trouble(result)
            why = f"its private state could not be fetched: {trouble}" if trouble else ""
            return Judgement(None, why or "the replay did not end in time")

        judgement = await first_of(self._judge.judge(result, lender), too_late())
        self._ports.events.emit(
            event_types.Audited(
                epoch=result.commitment.epoch,
                height=result.commitment.height,
                seat=result.commitment.seat,
                verdict=judgement.verdict.value if judgement.verdict else "abstained",
                why=judgement.reason,
                is_vote=case is not None,
            )
        )
        if judgement.is_hardware_fault:
            self._ports.events.emit(event_types.Warning(message=judgement.reason))
        return judgement

    async def _verify(
        self, result: AuditedResult, wanted: Callable[[Run], bool], *, is_vote: bool, mismatch: bool
    ) -> None:
        commitment = result.commitment
        at = RoundId(commitment.epoch, commitment.height, commitment.seed)
        name = "a vote on an audited result" if is_vote else "the case about an audited result"
        duty = Duty(self._ports, name, still_wanted=lambda: wanted(self._ports.feed.run))
        await duty.fulfil(
            lambda: self._ports.coordinator.verify(
                self._seat, at, target=commitment.seat, mismatch=mismatch
            )
        )

    @property
    def _seat(self) -> int:
        return self._epoch.start.seat
