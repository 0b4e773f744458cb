"""The rounds of one epoch, from the first training round to cooldown, for one member.

Round r: apply what a quorum attested in the last round; report members that did not deliver; train,
encode and announce our share; witness round r, or with overlap r-1. A late member trains the newest
round, not the ones it missed. It applies every round, in order, or gives up the epoch.
"""

from __future__ import annotations

from dataclasses import replace

from aftermath.events import event_types
from aftermath.member.evidence import Pair, show_equivocation
from aftermath.member.local_options import LocalOptions
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.rounds.announce import Announcing
from aftermath.member.rounds.apply import Applying
from aftermath.member.rounds.background import BackgroundTasks
from aftermath.member.rounds.epoch import CarriedOver, Epoch, EpochStart
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.member.rounds.health import AbsenceReports, report_undelivered
from aftermath.member.rounds.prompt import Continuations
from aftermath.member.rounds.read_ahead import Reading
from aftermath.member.rounds.resolve import RoundResolver
from aftermath.member.rounds.stragglers import Allowances
from aftermath.member.rounds.throughput import Throughput
from aftermath.member.rounds.train import Training
from aftermath.member.rounds.witness import WitnessDuty, time_for_results
from aftermath.member.traffic import report_traffic
from aftermath.rules import bitmap
from aftermath.rules.announcements import Commitment
from aftermath.rules.run import Run
from aftermath.rules.state import RunState


class Rounds:
    """One member's way through the rounds of one epoch."""

    def __init__(
        self,
        ports: Ports,
        role: Role,
        workers: Workers,
        local_options: LocalOptions,
        kept: CarriedOver,
        began: EpochStart,
    ) -> None:
        self._ports = ports
        self._workers = workers
        self._wishes = local_options
        self._began = began
        self._results = kept.results
        self._reveals = kept.reveals
        rules = began.run.config
        self.time = Throughput(ports.events, time_for_results(rules), began.weight)
        self._epoch = epoch = Epoch(began, ports.feed, kept.results)
        self._duties = BackgroundTasks(ports.events)
        self._reading = Reading(ports, workers.read, kept.data)
        self._resolver = resolver = RoundResolver(
            ports, role.levels, kept.results, epoch, self._duties
        )
        hashed = local_options.hash_replicas
        self._applying = Applying(
            ports, workers.compute, kept, epoch, resolver, self.time, hash_replicas=hashed
        )
        self._training = Training(
            ports,
            workers.compute,
            self._reading,
            epoch,
            self.time,
            stats_steps=local_options.optim_stats_steps,
            divergence=kept.divergence,
            delay=local_options.share_delay,
        )
        self._announcing = Announcing(ports, role, workers.decode, kept, epoch)
        self._absences = AbsenceReports()
        self._allowances = Allowances(rules.max_round_train_time)
        self._continuations = (
            Continuations(local_options.prompt, ports.feed, ports.events, workers.compute)
            if local_options.prompt
            else None
        )
        self._announced = -1  # height of the newest round with an announced result of this member
        self._duty: WitnessDuty | None = None
        kept.results.evidence.show = self._show

    async def live(self) -> Run | None:
        """Live through the rounds until cooldown. Return the run then, or None if warm-up was given
        up.

        A member that finishes late may see the next epoch on chain: the returned run has this
        epoch's number. Raises Desync if this member falls out.
        """
        epoch = self._epoch
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
            self._results.evidence.show = None
            self._reading.stop()
            await self._duties.stop()

    def are_of(self, run: Run) -> bool:
        """Return whether the run is in this epoch, and its rounds have begun."""
        began = self._began.run
        same = (run.epoch, run.epoch_started_at) == (began.epoch, began.epoch_started_at)
        return same and (run.state.training or run.state is RunState.COOLDOWN)

    @property
    def step(self) -> int:
        """Return the number of steps in the replica."""
        return self._applying.step

    async def catch_up(self, run: Run) -> int:
        """Apply every round that counts if the rounds stop at `run`. Return the steps in the
        replica.

        The running round counts too once this member has attested in it, if no other member is
        left. If the run has left this epoch, apply nothing: the epoch may be undone. Raises Desync.
        """
        if not self.are_of(run):
            return self._applying.step
        self._epoch.open_plans(run)
        height = run.current.height
        attested = run.state is RunState.COOLDOWN or bitmap.contains(
            run.current.attested, self._began.seat
        )
        await self._applying.through(
            run, self._epoch.rules.judged(height if attested else height - 1)
        )
        return self._applying.step

    def _show(self, said: Commitment, pair: Pair) -> None:
        self._duties.start(show_equivocation(self._ports, self._began.seat, said, pair))

    async def _round(self, run: Run) -> None:
        plan = self._begin(run)
        height = self._epoch.height
        seat = self._began.seat
        judged = self._epoch.rules.judged
        parts = self._ports, self._results, self._reveals, self._allowances
        duty = WitnessDuty(*parts, seat, plan, judged(height), self._duty)
        self._duty = duty
        self._duties.start(duty.attend())
        self._duties.start(duty.inquire(self._resolver.collector))
        await self._applying.through(run, judged(height - 1))
        self._duties.start(report_undelivered(self._ports, self._absences, run, seat))
        travelling = self._applying.height < self._announced == height - 1
        trained = await self._training.train(plan, travelling=travelling)
        if self._allowances.used_up(seat):
            self.time.waited_for_enough(self._allowances.seconds)
        if trained is None:
            duty.own_share_done(0.0, 0.0)
        else:
            await self._announcing.announce(plan, trained)
            self._announced = height
            duty.own_share_done(trained.loss, trained.tokens_per_sec)
        self._use_the_rest(plan)
        report_traffic(self._ports)

    def _begin(self, run: Run) -> RoundPlan:
        """Begin the run's newest round and start to read our share. Raises Desync if this member is
        not in it.
        """
        self._epoch.height = height = run.current.height
        if not bitmap.contains(run.current.roster, self._began.seat):
            raise Desync("this member is no longer in the run's roster")
        self._epoch.open_plans(run)
        plan = self._results.plan(height)
        if plan is None:
            raise Desync(f"{self._ports.coordinator.called} has moved on")
        self._reading.begin(self._epoch.share_of(plan))
        number = self._epoch.number
        step = plan.header.step
        since = run.state_started_at
        self._ports.events.emit(
            event_types.RoundStarted(epoch=number, height=height, step=step, since=since)
        )
        return plan

    # --- until the next round ---------------------------------------------------------------------

    def _use_the_rest(self, plan: RoundPlan) -> None:
        """Write sample text and run evaluations until the next round."""
        if self._continuations:
            place = self._epoch.number, plan.header.height, plan.header.step
            self._duties.start(self._continuations.run(self._began.replica, *place))
        if asked := self._wishes.evaluations:
            self._duties.start(self._evaluate(asked, plan))

    async def _evaluate(self, asked: Evaluations, plan: RoundPlan) -> None:
        """Evaluate the model until the next round."""
        feed = self._ports.feed
        place = (plan.epoch, plan.header.height)

        async def over() -> None:
            await feed.until(
                lambda run: not run.state.training or (run.epoch, run.current.height) != place
            )

        model = self._began.replica.model
        step = self._applying.step
        await asked.run(model, step, self._ports.events, self._workers.compute, over)
