"""Audits: replay the results that this member audits, open cases, and vote on cases of others.

An audit or a vote stops once the program no longer accepts it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from aftermath.audit.comparison import AuditVerdict
from aftermath.audit.share_audit import Judgement
from aftermath.base.concurrency import first_of
from aftermath.events import event_types
from aftermath.member.announced_results import Results
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Ports
from aftermath.member.retry import Duty
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.epoch import Epoch
from aftermath.member.rounds.judge import AuditedResult, Judge, Key
from aftermath.member.rounds.open_cases import OpenCases
from aftermath.member.state_roots import OwnState
from aftermath.rules import bitmap
from aftermath.rules.audits import (
    OPENING_ROUNDS,
    Case,
    auditable_heights,
    drawn_results,
    judging_window,
    seed_of_draw,
)
from aftermath.rules.run import RoundId, Run

Start = Callable[[Coroutine[Any, Any, None]], None]


class Audits:
    """The audits of one epoch for one member. Does nothing in a run without them."""

    def __init__(
        self,
        ports: Ports,
        results: Results,
        own_state: OwnState,
        epoch: Epoch,
        judge: Judge,
        start: Start,
    ) -> None:
        """`start` starts a background task of the epoch."""
        self._ports = ports
        self._results = results
        self._epoch = epoch
        self._judge = judge
        self._own_state = own_state
        self._start = start
        self._audited: dict[Key, AuditedResult] = {}
        """Results of rounds that are not drawn yet, and drawn results that can be judged."""
        self._cases = OpenCases(ports, epoch)
        self._drawn_by_round: dict[tuple[int, int], dict[int, int]] = {}
        """Auditor by target of the drawn results, by height and `Members.judges`."""
        self._draw_seeds: dict[int, int] = {}
        """Seeds of the draws, by height."""
        self._audits_started: set[Key] = set()
        """Drawn results whose probe, and audit if this member owes it, has started."""
        self._votes_started: set[Key] = set()

    # --- what the rounds report

    async def begin_round(self, plan: RoundPlan) -> None:
        """Keep the weights that a round is trained from, and drop what no audit needs."""
        height = plan.header.height
        oldest_drawable = height - self._epoch.rules.overlap - OPENING_ROUNDS
        rounds_with_draws = {
            drawn_at for (drawn_at, _), drawn in self._drawn_by_round.items() if drawn
        }
        needed = {
            judged
            for judged in range(height - judging_window(self._epoch.rules), height + 1)
            if judged in rounds_with_draws or judged >= oldest_drawable
        }
        self._judge.retain_weights(needed)
        self._audited = {key: result for key, result in self._audited.items() if key[0] in needed}
        roots: set[bytes] = set()
        for result in self._audited.values():
            private = result.commitment.private
            roots |= {private.before, private.after}
        self._own_state.keep_lent(roots)
        if any(map(self._judge.may_judge, self._epoch.judged_seats(plan))):
            await self._judge.keep_weights(height)

    def applied(self, height: int, results: Sequence[Candidate]) -> None:
        """Keep a round's results until its draw, and the drawn ones until they cannot be judged."""
        plan = self._results.plan(height)
        if plan is None or not self._epoch.judges(plan):
            return
        for candidate in results:
            result = AuditedResult(plan, candidate)
            self._audited[result.key] = result
            self._judge.note(result.commitment)

    def begin_spare_time(self) -> None:
        """Allow replays, because this member's part of the round is done."""
        self._judge.spare_time.begin()

    def end_spare_time(self) -> None:
        """Stop replaying, because a round begins."""
        self._judge.spare_time.end()

    # --- duties

    async def follow(self) -> None:
        """Start each audit and vote that this member owes, until cancelled."""
        feed = self._ports.feed
        while self._epoch.rules.verification_percent:
            run = feed.run
            if self._epoch.accepts_votes(run) and run.is_audited:
                self._cases.report_decisions()
                self._begin_audits(run)
                self._forget_undrawn()
                await self._cases.read(run)
                self._begin_votes(run)
            await feed.after(run.seq)

    def _begin_audits(self, run: Run) -> None:
        members = self._ports.feed.members
        for height in auditable_heights(run):
            seed = seed_of_draw(run, height)
            if seed is None:
                continue
            self._draw_seeds[height] = seed
            key = height, members.judges
            if key not in self._drawn_by_round:
                self._drawn_by_round[key] = drawn_results(run, members, height)
            for target, auditor in self._drawn_by_round[key].items():
                result = self._audited.get((height, target))
                if (
                    result is None
                    or target == self._seat
                    or result.key in self._audits_started
                    or not result.commitment.passes.can_be_judged
                ):
                    continue
                self._audits_started.add(result.key)
                self._start(self._probe(result, seed))
                if auditor == self._seat:
                    self._start(self._audit(result, seed))

    def _forget_undrawn(self) -> None:
        """Drop the results that their round's draw did not select."""
        drawn: dict[int, set[int]] = {}
        for (height, _), results in self._drawn_by_round.items():
            drawn.setdefault(height, set()).update(results)
        self._audited = {
            (height, seat): result
            for (height, seat), result in self._audited.items()
            if height not in drawn or seat in drawn[height]
        }

    def _begin_votes(self, run: Run) -> None:
        """Start this member's votes on open cases."""
        for key, case in self._cases.undecided.items():
            result = self._audited.get(key)
            seed = self._draw_seeds.get(case.height)
            if (
                result is not None
                and seed is not None
                and result.plan.header.seed == case.seed
                and case.may_vote(run, self._seat)
                and key not in self._votes_started
            ):
                self._votes_started.add(key)
                self._start(self._vote(result, seed, case))

    async def _probe(self, result: AuditedResult, seed: int) -> None:
        """Check that a member serves the state of a drawn result."""
        # One member cannot tell a refusal from a broken connection, so it does not accuse. But it
        # attests no more results of a member that did not answer in time. If a quorum of witnesses
        # got no answer, the member is dropped like one that delivers nothing.
        height, seat = result.key

        async def is_served() -> bool:
            await self._judge.probe(result, seed)
            return True

        async def window_closes() -> bool:
            await self._ports.feed.until(lambda run: not self._may_open(run, height))
            return False

        if not await first_of(is_served(), window_closes()) and self._announced_after(seat, height):
            self._results.stop_attesting(seat, height)

    def _announced_after(self, seat: int, since: int) -> bool:
        """Return whether a member of the running epoch announced a result after round `since`."""
        run = self._ports.feed.run
        later = range(since + 1, run.current.height + 1)
        is_here = self._epoch.is_running(run) and bitmap.contains(run.current.roster, seat)
        return is_here and any(seat in self._results.announced(height) for height in later)

    def _may_open(self, run: Run, height: int) -> bool:
        """Return whether cases about results of a round may be opened."""
        return self._epoch.accepts_votes(run) and height in auditable_heights(run)

    async def _audit(self, result: AuditedResult, seed: int) -> None:
        """Judge a result that this member audits. Open a case if it does not match."""
        height = result.commitment.height

        def may_open(run: Run) -> bool:
            return self._may_open(run, height)

        judgement = await self._judged(result, seed, may_open)
        if judgement.verdict is AuditVerdict.MISMATCH:
            self._lend(result, judgement)
            await self._verify(result, may_open, is_vote=False, mismatch=True)

    def _lend(self, result: AuditedResult, judgement: Judgement) -> None:
        """Lend the fetched blocks of both states to the jury, as the member may not serve them."""
        private = result.commitment.private
        evidence = judgement.evidence
        if evidence is not None:
            self._own_state.lend(private.before, evidence.before)
            self._own_state.lend(private.after, evidence.after)

    async def _vote(self, result: AuditedResult, seed: int, case: Case) -> None:
        """Judge a disputed result and vote."""

        def may_vote(run: Run) -> bool:
            return self._epoch.accepts_votes(run) and case.is_open(run)

        verdict = (await self._judged(result, seed, may_vote, case)).verdict
        if verdict is not None:
            mismatch = verdict is AuditVerdict.MISMATCH
            await self._verify(result, may_vote, is_vote=True, mismatch=mismatch)

    async def _judged(
        self,
        result: AuditedResult,
        seed: int,
        wanted: Callable[[Run], bool],
        case: Case | None = None,
    ) -> Judgement:
        """Judge a result and emit the verdict. Abstain once `wanted` returns False.

        `case` is the case to vote on, or None for an audit.
        """
        lender = result.plan.seats[case.auditor].p2p if case is not None else None

        async def too_late() -> Judgement:
            await self._ports.feed.until(lambda run: not wanted(run))
            trouble = self._judge.trouble(result)
            why = f"its private state could not be fetched: {trouble}" if trouble else ""
            return Judgement(None, why or "the replay did not end in time")

        judgement = await first_of(self._judge.judge(result, seed, lender), too_late())
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
        await duty.insist(  # all cases may be taken, and one may soon be free
            lambda: self._ports.coordinator.verify(
                self._seat, at, target=commitment.seat, mismatch=mismatch
            )
        )

    @property
    def _seat(self) -> int:
        return self._epoch.start.seat
