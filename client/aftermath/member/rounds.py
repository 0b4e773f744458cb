"""The rounds of one epoch, from the first training round to cooldown, for one member.

Round r: apply what a quorum attested in the round before; report who did not deliver; train our share, encode it,
announce it; witness the round that r judges: itself, or with overlap r-1, whose results arrive while r trains. A member
that is late trains the newest round, not the ones it missed; it applies every round, in order, or gives up the epoch.
Whatever enters the arithmetic (learning rate, cold start) or the shares (weights, tiers), and the rules, is read once,
when the epoch begins: a member that applies the last round late must get the same bits, although the others have
declared anew by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, NoReturn

import torch

from aftermath.base.wait import cancel, first_of
from aftermath.coordinator.errors import Refused
from aftermath.data.source import Source
from aftermath.member.collect import Collector
from aftermath.member.evaluations import Evaluations
from aftermath.member.evidence import Pair, disputed, show_equivocation
from aftermath.member.gradients import GradientFiles
from aftermath.member.health import Excuses, report_undelivered
from aftermath.member.lateness import Allowances
from aftermath.member.own_state import OwnState
from aftermath.member.plan import RoundPlan, plan_round
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.prompt import Continuations
from aftermath.member.read_ahead import Reading
from aftermath.member.results import Candidate, Results
from aftermath.member.sharetime import ShareTime
from aftermath.member.traffic import report_traffic
from aftermath.member.wishes import Wishes
from aftermath.member.witness import WitnessDuty, time_for_results
from aftermath.optim.clip import NonFiniteGradient
from aftermath.optim.codec import decode_level
from aftermath.optim.engine import Trained
from aftermath.replica.modelshare import ModelShare
from aftermath.replica.replica import Cancelled, Replica
from aftermath.rules import bitmap
from aftermath.rules.commitment import Commitment, LevelPayload, SequenceInterval, encode_announcement
from aftermath.rules.consensus import Fingerprint, consensus, vouched
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import STORED_ROUNDS, Round, Run
from aftermath.rules.schedules import round_learning_rate
from aftermath.rules.state import RunState
from aftermath.watch import kinds
from aftermath.watch.events import hexed

_NOT_RUNNING = (RunState.WAITING_FOR_MEMBERS, RunState.PAUSED, RunState.FINISHED)


class Rounds:
    """One member's way through the rounds of one epoch, which `began` as that state of the run says."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        data: Source,
        wishes: Wishes,
        results: Results,
        share: ModelShare,
        gradients: GradientFiles,
        own: OwnState,
        replica: Replica,
        began: Run,
        model: Model,
        seat: int,
        weight: int,
    ) -> None:
        self._ports, self._role, self._workers, self._wishes = ports, role, workers, wishes
        self._reading = Reading(ports, workers.read, data)
        self._results, self._share, self._gradients, self._own = results, share, gradients, own
        self._replica, self._began, self._model, self._seat = replica, began, model, seat
        self._epoch = began.epoch
        self._members: Members | None = None
        self._excuses, self._allowances = Excuses(), Allowances(began.config.max_round_train_time)
        self._collector = Collector(ports, role.levels, results, began.epoch)
        self._continuations = (
            Continuations(wishes.prompt, ports.feed, ports.events, workers.compute) if wishes.prompt else None
        )
        self._rules = began.config
        self.time = ShareTime(ports.events, time_for_results(began.config), weight)
        self._applied = -1  # height of the newest round whose results are in the replica
        self._step = began.trained_steps  # how many steps are in it
        self._announced = -1  # height of the newest round of which this member has told of a result
        self._height = -1
        self._duty: WitnessDuty | None = None
        self._duties: set[asyncio.Task[None]] = set()
        results.evidence.show = self._show

    async def live(self) -> Run | None:
        """Go through the rounds until cooldown; returns the run then, or None if warm-up was given up.

        For a member that finishes late the chain counts the next epoch already: what is returned has this one's number.
        Raises Desync if this member falls out.
        """
        try:
            while True:
                run = await self._ports.feed.until(self._something_to_do)
                if self._given_up(run):
                    return None
                if self._ended(run):
                    self._open_plans(run)
                    await self._apply_through(run, self._rules.judged(run.current.height))
                    return replace(run, epoch=self._epoch)
                if not self._goes_on(run):
                    raise Desync("the epoch went on without this member")
                await self._round(run)
        finally:
            self._results.evidence.show = None
            self._reading.stop()
            await cancel(self._duties)

    def _something_to_do(self, run: Run) -> bool:
        if self._goes_on(run):
            return run.current.height > self._height
        return not (self._still_ours(run) and run.state is RunState.WARMUP)

    def _still_ours(self, run: Run) -> bool:
        """Whether what the chain stores is of the epoch that began for this member.

        Every warm-up begins at another second and clears the rounds. One that is given up leaves the epoch its number.
        """
        return run.epoch_started_at == self._began.epoch_started_at

    def _goes_on(self, run: Run) -> bool:
        return self._still_ours(run) and run.epoch == self._epoch and run.state.training

    def _given_up(self, run: Run) -> bool:
        """Before a round was seen, warm-up was abandoned or paused, or has begun anew."""
        if self._height >= 0 or run.epoch != self._epoch:
            return False
        return not self._still_ours(run) or run.state in (RunState.WARMUP, *_NOT_RUNNING)

    def _ended(self, run: Run) -> bool:
        """Cooldown, or just after it: the chain still stores the last rounds until the next warm-up."""
        if not self._still_ours(run) or run.step != self._step_after(run):
            return False  # the last: the owner has set the run to another step since
        just_after = run.epoch == self._epoch + 1 and run.state in _NOT_RUNNING
        return just_after or (run.epoch == self._epoch and run.state is RunState.COOLDOWN)

    def _step_after(self, run: Run) -> int:
        """The step that comes after the last round that is stored: one with an attested result was a step."""
        last = run.current
        judged = run.round(self._rules.judged(last.height))
        if judged is None or not judged.batch:
            return last.step
        plan = self._plan(judged, self._members or self._ports.feed.members)
        made = any(bitmap.contains(last.attested, seat) for seat in plan.owing)
        return last.step - self._rules.overlap + made

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        duty = asyncio.ensure_future(work)
        self._duties.add(duty)
        duty.add_done_callback(self._finished)

    def _finished(self, duty: asyncio.Task[None]) -> None:
        self._duties.discard(duty)
        if not duty.cancelled() and (error := duty.exception()) is not None:
            self._ports.events.emit(kinds.Warning(message=f"a duty of this round failed: {error}"))

    def _show(self, said: Commitment, pair: Pair) -> None:
        self._start(show_equivocation(self._ports, self._seat, said, pair))

    # --- one round ----------------------------------------------------------------------------------------------

    async def _round(self, run: Run) -> None:
        self._height = run.current.height
        if not bitmap.contains(run.current.roster, self._seat):
            raise Desync("this member is no longer in the run's roster")
        self._open_plans(run)
        plan = self._results.plan(self._height)
        if plan is None:
            raise Desync("the chain has moved on")
        self._reading.begin(self._share_of(plan))
        since = run.state_started_at
        self._ports.events.emit(kinds.Round(epoch=self._epoch, height=self._height, step=plan.header.step, since=since))
        judged = self._rules.judged(self._height)
        duty = WitnessDuty(self._ports, self._results, self._allowances, self._seat, plan, judged, self._duty)
        self._duty = duty
        self._start(duty.attend())
        self._start(duty.inquire(self._collector))
        await self._apply_through(run, self._rules.judged(self._height - 1))
        self._start(report_undelivered(self._ports, self._excuses, run, self._seat))
        trained = await self._train(plan)
        if self._allowances.used_up(self._seat):
            self.time.waited_for_enough(self._allowances.seconds)
        if trained is None:
            duty.own_share_done(0.0, 0.0)
        else:
            await self._announce(plan, trained)
            self._announced = self._height
            duty.own_share_done(trained.loss, trained.tokens / max(trained.seconds, 1e-6))
        if self._continuations:
            self._start(self._continuations.go_on(self._replica, self._epoch, self._height, plan.header.step))
        if asked := self._wishes.evaluations:
            self._start(self._evaluate(asked, plan))
        report_traffic(self._ports)

    def _open_plans(self, run: Run) -> None:
        """Plan every round the chain still stores and this member has not seen, oldest first."""
        if self._members is None:
            self._members = self._ports.feed.members
        newest = run.current.height
        for height in range(max(0, newest - STORED_ROUNDS + 1), newest + 1):
            header = run.round(height)
            if header is not None and self._results.plan(height) is None:
                self._results.open(self._plan(header, self._members))

    def _plan(self, header: Round, members: Members) -> RoundPlan:
        return plan_round(self._began.run_id, self._epoch, header, members, self._rules.verification_percent)

    # --- applying -----------------------------------------------------------------------------------------------

    async def _apply_through(self, run: Run, last: int) -> None:
        """Apply every round up to height `last` that is not in the replica yet."""
        while self._applied < last:
            height = self._applied + 1
            done, attesting = run.round(height), run.round(self._rules.judges(height))
            if done is None or attesting is None:
                raise Desync(f"round {height} is no longer stored on chain")
            if done.batch:
                await self._apply(run, done, attesting)
            self._applied = height

    async def _apply(self, run: Run, done: Round, attesting: Round) -> None:
        started = self._ports.clock.monotonic()
        try:
            attestations = await self._ports.coordinator.attestations(attesting)
        except Refused as error:
            raise Desync(str(error)) from error
        accepted = consensus(attesting, attestations, done.roster)
        if others := disputed(attestations, done.roster) & self._results.announced(done.height):
            self._start(self._collector.ask(done.height, others, lambda _: False))
        members = self._members or self._ports.feed.members
        levels = vouched(accepted, attestations, done.roster, run, members, self._role.levels)
        results = await self._collect(done.height, attesting.salt, accepted, levels)
        self._tell_what_is_left_out(done.height, results, levels)
        votes = self._collector.by_level(results, levels)
        waited = self._ports.clock.monotonic() - started
        lr = round_learning_rate(self._began, self._model, done.step)
        self._share.withdraw()
        if accepted:  # else it is no step, and changes nothing
            await self._workers.compute(lambda: self._replica.apply(votes, lr))
            self._step = done.step
        self._results.applied(done.height)
        self._gradients.keep(results, lr)
        hashes = await self._workers.compute(self._replica.hashes) if self._wishes.hash_replicas else {}
        seconds = self._ports.clock.monotonic() - started - waited
        if not self._held_up_since(started):
            self.time.applied(seconds)
        self._ports.events.emit(
            kinds.Applied(
                epoch=self._epoch,
                height=done.height,
                step=done.step,
                results=len(accepted),
                sequences=self._results.sequences(done.height, accepted),
                waited=waited,
                seconds=seconds,
                hashes=hexed(hashes),
            )
        )

    def _tell_what_is_left_out(
        self, height: int, results: Iterable[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> None:
        """Say whose accepted results are applied without some of their levels."""
        for result in results:
            seat = result.said.seat
            if out := [level for level in vouched if level >= result.said.tier and seat not in vouched[level]]:
                what = f"level{'s' * (len(out) > 1)} {', '.join(map(str, out))}"
                why = f"{what} left out: too few of the witnesses that judge it have it"
                self._ports.events.emit(kinds.Refused(height=height, seat=seat, why=why))

    async def _collect(
        self, height: int, salt: int, accepted: Mapping[int, Fingerprint], vouched: Mapping[int, frozenset[int]]
    ) -> list[Candidate]:
        """The accepted results of a round. Desync if they are not here a round's time after the epoch has ended.

        The next epoch may wait for this member, and then the chain never says that it is too late.
        """

        async def give_up() -> NoReturn:
            await self._ports.feed.until(lambda now: now.epoch != self._epoch)
            await self._ports.clock.sleep(self._rules.max_round_train_time)
            raise Desync(f"the epoch is over and results of round {height} could not be had from any peer")

        return await first_of(self._collector.collect(height, salt, accepted, vouched), give_up())

    async def _evaluate(self, asked: Evaluations, plan: RoundPlan) -> None:
        """Have the model asked until the run goes on."""
        feed, place = self._ports.feed, (plan.epoch, plan.header.height)

        async def over() -> None:
            await feed.until(lambda run: not run.state.training or (run.epoch, run.current.height) != place)

        await asked.go_on(self._replica.model, self._step, self._ports.events, self._workers.compute, over)

    # --- training -----------------------------------------------------------------------------------------------

    def _share_of(self, plan: RoundPlan) -> list[int]:
        return [index for span in plan.ranges(self._seat) for index in span]

    async def _train(self, plan: RoundPlan) -> Trained | None:
        """Train our share; None if we have none, the run moved past us, or the gradient was not finite."""
        indices = self._share_of(plan)
        if not indices:
            return None
        lr = round_learning_rate(self._began, self._model, plan.header.step)
        ahead = round_learning_rate(self._began, self._model, plan.header.step - 1)
        measured = bool(every := self._wishes.optim_stats_steps) and plan.header.step % every == 0
        travelling = self._applied < self._announced == plan.header.height - 1
        cancelled, started = threading.Event(), self._ports.clock.monotonic()
        watch = asyncio.ensure_future(self._cancel_when_late(plan, cancelled))
        try:
            share = await first_of(self._reading.share(indices), self._late(plan))
            sequences = await self._workers.compute(lambda: torch.from_numpy(share))
            trained = await self._workers.compute(
                lambda: self._replica.train(sequences, lr, ahead, cancelled, measured, travelling)
            )
        except Cancelled:
            self._ports.events.emit(kinds.Warning(message=f"round {plan.header.height} was given up: the run is ahead"))
            self._took(len(indices), started, done=False)
            return None
        except NonFiniteGradient as error:
            self._ports.events.emit(kinds.Warning(message=f"step {plan.header.step} is left out: {error}"))
            return None
        finally:
            watch.cancel()
            cancelled.set()  # if we were cancelled ourselves, the worker thread stops at its next micro-batch
        for message in self._replica.news():
            self._ports.events.emit(kinds.Warning(message=message))
        self._took(len(indices), started, done=True)
        return trained

    def _took(self, sequences: int, started: float, *, done: bool) -> None:
        """Tell how long a share took, unless that shows nothing: with a weight of next to nothing this member would get
        no share any more, and without one nothing shows its true speed.
        """
        if not self._held_up_since(started):
            self.time.took(sequences, self._ports.clock.monotonic() - started, done=done)

    def _held_up_since(self, started: float) -> bool:
        return self._ports.attention.woke() >= started

    async def _late(self, plan: RoundPlan) -> NoReturn:
        """Raises Cancelled once a result is of no use: when the round that judges it has closed."""
        latest = self._rules.judges(plan.header.height)
        await self._ports.feed.until(
            lambda run: run.epoch != plan.epoch or not run.state.training or run.current.height > latest
        )
        raise Cancelled

    async def _cancel_when_late(self, plan: RoundPlan, cancelled: threading.Event) -> None:
        with contextlib.suppress(Cancelled):
            await self._late(plan)
        cancelled.set()

    async def _announce(self, plan: RoundPlan, trained: Trained) -> None:
        """Publish the payloads and tell everybody, under our signature. Then others may ask for the private state."""
        started, results = self._ports.clock.monotonic(), self._role.schema.results
        votes, private = await asyncio.gather(
            self._workers.decode(
                lambda: {level: decode_level(data, results, level) for level, data in trained.payloads.items()}
            ),
            self._own.trained(self._replica, plan.epoch, plan.header.height),
        )
        speed = trained.tokens / max(trained.seconds, 1e-6)
        said = Commitment(
            sender=self._ports.transport.node_id,
            signer=self._ports.coordinator.wallet,
            run_id=self._role.run_id,
            epoch=plan.epoch,
            height=plan.header.height,
            seed=plan.header.seed,
            step=plan.header.step,
            seat=self._seat,
            tier=self._role.tier,
            intervals=tuple(SequenceInterval(r.start, r.stop) for r in plan.ranges(self._seat)),
            schema_hash=self._role.schema.hash(),
            levels={
                level: LevelPayload(self._ports.transport.publish(data), len(data))
                for level, data in sorted(trained.payloads.items())
            },
            private=private,
            loss=trained.loss,
            tokens_per_sec=speed,
        )
        raw = encode_announcement(said, self._role.p2p_secret)
        self._results.keep_own(said, raw, votes, trained.payloads)
        await self._ports.transport.announce(raw)
        self._ports.events.emit(
            kinds.Trained(
                epoch=plan.epoch,
                height=plan.header.height,
                step=plan.header.step,
                loss=trained.loss,
                tokens=trained.tokens,
                tokens_per_sec=speed,
                seconds=trained.seconds,
                encode_seconds=trained.encode_seconds,
                announce_seconds=self._ports.clock.monotonic() - started,
                bytes=sum(map(len, trained.payloads.values())),
            )
        )
        await self._own.offer(self._replica)
        if trained.measured is not None:
            self._ports.events.emit(
                kinds.Optimizer(
                    epoch=plan.epoch,
                    height=plan.header.height,
                    step=plan.header.step,
                    levels={level: asdict(found) for level, found in trained.measured.items()},
                    seconds=trained.measure_seconds,
                )
            )
