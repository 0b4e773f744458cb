"""The rounds of one epoch, from the first training round to cooldown, for one member.

Round r: apply what a quorum attested in the round before; report who did not deliver; train our share, encode it,
announce it; witness the round that r judges: itself, or with overlap r-1, whose results arrive while r trains. A member
that is late trains the newest round, not the ones it missed; it applies every round, in order, or gives up the epoch.
"""

from __future__ import annotations

from dataclasses import replace

from aftermath.member.evidence import Pair, show_equivocation
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Desync, Ports, Role, Workers
from aftermath.member.rounds.announce import Announcing
from aftermath.member.rounds.apply import Applying
from aftermath.member.rounds.duties import Duties
from aftermath.member.rounds.epoch import Beginning, CarriedOver, Epoch
from aftermath.member.rounds.evaluations import Evaluations
from aftermath.member.rounds.health import Excuses, report_undelivered
from aftermath.member.rounds.lateness import Allowances
from aftermath.member.rounds.prompt import Continuations
from aftermath.member.rounds.read_ahead import Reading
from aftermath.member.rounds.settle import Settling
from aftermath.member.rounds.sharetime import ShareTime
from aftermath.member.rounds.train import Training
from aftermath.member.rounds.witness import WitnessDuty, time_for_results
from aftermath.member.traffic import report_traffic
from aftermath.member.wishes import Wishes
from aftermath.rules import bitmap
from aftermath.rules.commitment import Commitment
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.watch import kinds


class Rounds:
    """One member's way through the rounds of one epoch."""

    def __init__(
        self, ports: Ports, role: Role, workers: Workers, wishes: Wishes, kept: CarriedOver, began: Beginning
    ) -> None:
        self._ports, self._workers, self._wishes, self._began = ports, workers, wishes, began
        self._results, self._opening, rules = kept.results, kept.opening, began.run.config
        self.time = ShareTime(ports.events, time_for_results(rules), began.weight)
        self._epoch = epoch = Epoch(began, ports.feed, kept.results)
        self._duties = Duties(ports.events)
        self._reading = Reading(ports, workers.read, kept.data)
        self._settling = settling = Settling(ports, role.levels, kept.results, epoch, self._duties)
        hashed = wishes.hash_replicas
        self._applying = Applying(ports, workers.compute, kept, epoch, settling, self.time, hash_replicas=hashed)
        self._training = Training(
            ports,
            workers.compute,
            self._reading,
            epoch,
            self.time,
            stats_steps=wishes.optim_stats_steps,
            divergence=kept.divergence,
            delay=wishes.share_delay,
        )
        self._announcing = Announcing(ports, role, workers.decode, kept, epoch)
        self._excuses, self._allowances = Excuses(), Allowances(rules.max_round_train_time)
        self._continuations = (
            Continuations(wishes.prompt, ports.feed, ports.events, workers.compute) if wishes.prompt else None
        )
        self._announced = -1  # height of the newest round of which this member has told of a result
        self._duty: WitnessDuty | None = None
        kept.results.evidence.show = self._show

    async def live(self) -> Run | None:
        """Go through the rounds until cooldown; returns the run then, or None if warm-up was given up.

        For a member that finishes late the chain counts the next epoch already: what is returned has this one's number.
        Raises Desync if this member falls out.
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
                if not epoch.goes_on(run):
                    raise Desync("the epoch went on without this member")
                await self._round(run)
        finally:
            self._results.evidence.show = None
            self._reading.stop()
            await self._duties.stop()

    @property
    def epoch(self) -> int:
        """Return the number of the epoch."""
        return self._epoch.number

    async def catch_up(self, run: Run) -> int:
        """Apply every round that counts if the rounds stop at `run`; return the steps in the replica. Raises Desync.

        The running round counts too once this member has attested in it, if no other member is left.
        """
        self._epoch.open_plans(run)
        height = run.current.height
        attested = run.state is RunState.COOLDOWN or bitmap.contains(run.current.attested, self._began.seat)
        await self._applying.through(run, self._epoch.rules.judged(height if attested else height - 1))
        return self._applying.step

    def _show(self, said: Commitment, pair: Pair) -> None:
        self._duties.start(show_equivocation(self._ports, self._began.seat, said, pair))

    async def _round(self, run: Run) -> None:
        plan = self._begin(run)
        height, seat, judged = self._epoch.height, self._began.seat, self._epoch.rules.judged
        parts = self._ports, self._results, self._opening, self._allowances
        duty = WitnessDuty(*parts, seat, plan, judged(height), self._duty)
        self._duty = duty
        self._duties.start(duty.attend())
        self._duties.start(duty.inquire(self._settling.collector))
        await self._applying.through(run, judged(height - 1))
        self._duties.start(report_undelivered(self._ports, self._excuses, run, seat))
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
        """Begin the run's newest round, and to read our share of it. Raises Desync if this member is not in it."""
        self._epoch.height = height = run.current.height
        if not bitmap.contains(run.current.roster, self._began.seat):
            raise Desync("this member is no longer in the run's roster")
        self._epoch.open_plans(run)
        plan = self._results.plan(height)
        if plan is None:
            raise Desync(f"{self._ports.coordinator.called} has moved on")
        self._reading.begin(self._epoch.share_of(plan))
        number, step, since = self._epoch.number, plan.header.step, run.state_started_at
        self._ports.events.emit(kinds.Round(epoch=number, height=height, step=step, since=since))
        return plan

    # --- until the run goes on ----------------------------------------------------------------------------------

    def _use_the_rest(self, plan: RoundPlan) -> None:
        """What the user of this member asked for while the run does not need it."""
        if self._continuations:
            place = self._epoch.number, plan.header.height, plan.header.step
            self._duties.start(self._continuations.go_on(self._began.replica, *place))
        if asked := self._wishes.evaluations:
            self._duties.start(self._evaluate(asked, plan))

    async def _evaluate(self, asked: Evaluations, plan: RoundPlan) -> None:
        """Have the model asked until the run goes on."""
        feed, place = self._ports.feed, (plan.epoch, plan.header.height)

        async def over() -> None:
            await feed.until(lambda run: not run.state.training or (run.epoch, run.current.height) != place)

        model, step = self._began.replica.model, self._applying.step
        await asked.go_on(model, step, self._ports.events, self._workers.compute, over)
