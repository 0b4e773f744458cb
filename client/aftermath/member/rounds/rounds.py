"""One member's rounds of one epoch, from the first training round to cooldown.

In round r: apply what a quorum attested in the last round. Report members that did not deliver.
Train, encode and announce our share. Witness round r, or with overlap r-1. A late member trains
only the newest round. It applies every round, in order, or abandons the epoch.
"""

from __future__ import annotations

from dataclasses import replace

from aftermath.events import event_types
from aftermath.member.evidence import Pair, show_equivocation
from aftermath.member.local_options import LocalOptions
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.announce import Announcing
from aftermath.member.rounds.apply import Applying, BackgroundTasks, RoundResolver
from aftermath.member.rounds.audits import Audits
from aftermath.member.rounds.epoch import CarriedOver, Epoch, EpochStart
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.member.rounds.health import AbsenceReports, report_undelivered
from aftermath.member.rounds.judge import Judge
from aftermath.member.rounds.prompt import Continuations
from aftermath.member.rounds.stragglers import Allowances
from aftermath.member.rounds.throughput import Throughput
from aftermath.member.rounds.train import Reading, Training
from aftermath.member.rounds.witness import WitnessDuty, time_for_results
from aftermath.member.status_events import report_traffic
from aftermath.rules import bitmap
from aftermath.rules.announcements import Commitment
from aftermath.rules.run import Run
from aftermath.rules.state import RunState


class Rounds:
    """Drives one member through the rounds of one epoch."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        local_options: LocalOptions,
        carried: CarriedOver,
        start: EpochStart,
    ) -> None:
        self._ports = ports
        self._workers = workers
        self._options = local_options
        self._start = start
        self._results = carried.results
        self._reveals = carried.reveals
        self._own_state = carried.own_state
        rules = start.run.config
        self.time = Throughput(ports.events, time_for_results(rules), start.weight)
        self._epoch = epoch = Epoch(start, ports.feed, carried.results)
        self._tasks = BackgroundTasks(ports.events)
        self._audit_tasks = BackgroundTasks(ports.events)  # these also run in the cooldown
        self._reading = Reading(ports, workers.read, carried.data)
        self._resolver = resolver = RoundResolver(
            ports, role.levels, carried.results, epoch, self._tasks
        )
        judge = Judge(ports, role, workers, carried, epoch, local_options)
        self._audits = Audits(
            ports, carried.results, carried.own_state, epoch, judge, self._audit_tasks.start
        )
        self._applying = Applying(
            ports,
            workers.compute,
            carried,
            epoch,
            resolver,
            self.time,
            applied=self._audits.applied,
            hash_replicas=local_options.hash_replicas,
        )
        self._training = Training(
            ports,
            workers.compute,
            self._reading,
            epoch,
            self.time,
            stats_steps=local_options.optim_stats_steps,
            divergence=carried.divergence,
            delay=local_options.share_delay,
        )
        self._announcing = Announcing(ports, role, workers.decode, carried, epoch)
        self._absences = AbsenceReports()
        self._allowances = Allowances(rules.max_round_train_time)
        self._continuations = self._new_continuations(workers)
        self._announced = -1  # height of the newest round with an announced result of this member
        self._duty: WitnessDuty | None = None
        carried.results.evidence.on_pair = self._show_evidence

    def _new_continuations(self, workers: Workers) -> Continuations | None:
        prompt = self._options.prompt
        if prompt is None:
            return None
        return Continuations(prompt, self._ports.feed, self._ports.events, workers.compute)

    async def live(self) -> Run | None:
        """Run the rounds until cooldown. Return the run then, or None after a failed warm-up.

        A member that finishes late may see the next epoch on chain: the returned run has this
        epoch's number. Audits continue until `stop_audits`. Raises Desync if this member falls out.
        """
        epoch = self._epoch
        self._audit_tasks.start(self._audits.follow())
        try:
            while True:
                run = await self._ports.feed.until(epoch.something_to_do)
                if epoch.given_up(run):
                    return None
                if epoch.ended(run):
                    epoch.open_plans(run)
                    await self._applying.through(run, epoch.rules.judged(run.current.height))
                    return replace(run, epoch=epoch.number)
                if not epoch.is_running(run):
                    raise Desync("the epoch continued without this member")
                await self._round(run)
        finally:
            self._results.evidence.on_pair = None
            self._reading.stop()
            await self._tasks.stop()

    async def stop_audits(self) -> None:
        """Stop auditing and voting in this epoch, and free the evidence."""
        await self._audit_tasks.stop()
        self._own_state.keep_lent(())

    def are_of(self, run: Run) -> bool:
        """Return whether the run is in this epoch, and its rounds have begun."""
        start = self._start.run
        same = (run.epoch, run.epoch_started_at) == (start.epoch, start.epoch_started_at)
        return same and (run.state.training or run.state is RunState.COOLDOWN)

    @property
    def step(self) -> int:
        """Return the number of steps in the replica."""
        return self._applying.step

    async def finish_attestation(self) -> None:
        """Resend an attestation that was in flight when this member was stopped.

        Otherwise it may arrive after this member has decided which rounds count.
        """
        if self._duty is not None:
            await self._duty.finish()

    async def finish_apply(self) -> None:
        """Wait for an apply that was under way when this member was stopped."""
        await self._applying.finish()

    async def catch_up(self, run: Run) -> int:
        """Apply every round that counts if the rounds stop at `run`. Return the replica's steps.

        The running round counts too if this member has attested in it and no other member is left.
        If the run has left this epoch, apply nothing, because the epoch may be undone. Raises
        Desync.
        """
        if not self.are_of(run):
            return self._applying.step
        self._epoch.open_plans(run)
        height = run.current.height
        attested = run.state is RunState.COOLDOWN or bitmap.contains(
            run.current.attested, self._start.seat
        )
        await self._applying.through(
            run, self._epoch.rules.judged(height if attested else height - 1)
        )
        return self._applying.step

    def _show_evidence(self, commitment: Commitment, pair: Pair) -> None:
        self._tasks.start(show_equivocation(self._ports, self._start.seat, commitment, pair))

    async def _round(self, run: Run) -> None:
        plan = self._begin(run)
        height = self._epoch.height
        seat = self._start.seat
        judged = self._epoch.rules.judged
        duty = WitnessDuty(
            self._ports,
            self._results,
            reveals=self._reveals,
            allowances=self._allowances,
            seat=seat,
            plan=plan,
            judged=judged(height),
            previous=self._duty,
        )
        self._duty = duty
        self._tasks.start(duty.attend())
        self._tasks.start(duty.request_missing(self._resolver.collector))
        await self._applying.through(run, judged(height - 1))
        await self._audits.begin_round(plan)
        if self._epoch.can_be_audited():  # auditors need the state before the share
            await self._own_state.offer(self._start.replica)
        self._tasks.start(report_undelivered(self._ports, self._absences, run, seat))
        travelling = self._applying.height < self._announced == height - 1
        trained = await self._training.train(plan, travelling=travelling)
        if self._allowances.used_up(seat):
            self.time.allowance_used(self._allowances.seconds)
        if trained is None:
            duty.own_share_done(0.0, 0.0)
        else:
            await self._announcing.announce(plan, trained)
            self._announced = height
            duty.own_share_done(trained.loss, trained.tokens_per_sec)
        self._start_spare_time_tasks(plan)
        report_traffic(self._ports)

    def _begin(self, run: Run) -> RoundPlan:
        """Begin the run's newest round and start to read our share. Raises Desync if this member is
        not in it.
        """
        self._audits.end_spare_time()
        self._epoch.height = height = run.current.height
        if not bitmap.contains(run.current.roster, self._start.seat):
            raise Desync("this member is no longer in the run's roster")
        self._epoch.open_plans(run)
        plan = self._results.plan(height)
        if plan is None:
            raise Desync(f"{self._ports.coordinator.display_name} no longer stores round {height}")
        self._reading.begin(self._epoch.share_of(plan))
        number = self._epoch.number
        step = plan.header.step
        since = run.state_started_at
        self._ports.events.emit(
            event_types.RoundStarted(epoch=number, height=height, step=step, since=since)
        )
        return plan

    # --- until the next round ---------------------------------------------------------------------

    def _start_spare_time_tasks(self, plan: RoundPlan) -> None:
        """Audit, write sample text and run evaluations until the next round."""
        self._audits.begin_spare_time()
        if self._continuations:
            self._tasks.start(
                self._continuations.run(
                    self._start.replica,
                    self._epoch.number,
                    height=plan.header.height,
                    step=plan.header.step,
                )
            )
        if evaluations := self._options.evaluations:
            self._tasks.start(self._evaluate(evaluations, plan))

    async def _evaluate(self, evaluations: Evaluations, plan: RoundPlan) -> None:
        """Evaluate the model until the next round."""
        feed = self._ports.feed
        round_key = (plan.epoch, plan.header.height)

        async def over() -> None:
            await feed.until(
                lambda run: not run.state.training or (run.epoch, run.current.height) != round_key
            )

        model = self._start.replica.model
        step = self._applying.step
        await evaluations.run(model, step, self._ports.events, self._workers.compute, over)
