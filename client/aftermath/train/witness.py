"""A witness's duty in one round: attest what the members delivered in the round before.

Choices:
- it speaks as soon as it holds every result of the round before and everybody has announced this round's, so a round
  lasts as long as its slowest member needs, up to the run's limit;
- members out of reach are waited for a little, then not at all; others until shortly before the round's time is up,
  since RoundWitness may last less than a transaction takes and a missing quorum ends the epoch;
- what it attests is only what it holds and has checked itself; what is known to be worthless is not waited for;
- announcements that never came are asked for, so that a lost message costs nobody its share.
"""

from __future__ import annotations

from aftermath.run import bitmap
from aftermath.run.accounts import Run
from aftermath.run.committee import witnesses
from aftermath.run.consensus import pack_fingerprints
from aftermath.run.state import MemberState, RunState
from aftermath.train.collect import ASK_EVERY, Collector
from aftermath.train.context import Context
from aftermath.train.persist import Duty
from aftermath.train.plan import RoundPlan
from aftermath.train.results import Results
from aftermath.train.wait import first_of

_PATIENCE = 3.0  # seconds, and twice the time our own share took, for members out of reach
_LOOK_AGAIN = 0.5
# no longer healthy: SlotMismatch; somebody that we took to have left has attested: NotElected
_DONE = frozenset({"DuplicateWitness", "WrongState", "StaleHeight", "SlotMismatch", "NotElected"})


class WitnessDuty:
    """Attests one round, if this member is elected for it."""

    def __init__(self, context: Context, results: Results, slot: int, plan: RoundPlan) -> None:
        self._ctx, self._results, self._slot, self._plan = context, results, slot, plan
        self._started = context.clock.monotonic()
        self._own_done: float | None = None
        self.loss, self.tokens_per_sec = 0.0, 0.0

    def own_share_done(self, loss: float, tokens_per_sec: float) -> None:
        """Our own training of this round is over, with or without a result."""
        self._own_done = self._ctx.clock.monotonic()
        self.loss, self.tokens_per_sec = loss, tokens_per_sec
        self._results.changed.fire()

    def _over(self) -> bool:
        run = self._ctx.feed.run
        training = run.state.training
        return run.epoch != self._plan.epoch or not training or run.current.height != self._plan.header.height

    async def attend(self) -> None:
        """Attest once the time has come; returns when that is done, refused for good, or the round is over.

        Who is no witness waits too: it becomes one when others leave.
        """
        name = f"the attestation of round {self._plan.header.height}"
        duty = Duty(self._ctx, name, wanted=lambda: not self._over(), done_if=_DONE)
        while not self._over() and not duty.refused:
            run, healthy = self._ctx.feed.run, await self._healthy()
            due = duty.due and self._slot in witnesses(run.current, healthy) and self._time_has_come(run, healthy)
            if due and (await self._attest(duty) or bitmap.contains(self._ctx.feed.run.current.attested, self._slot)):
                return
            await first_of(
                self._results.changed.wait(), self._ctx.feed.after(run.seq), self._ctx.clock.sleep(_LOOK_AGAIN)
            )

    async def _healthy(self) -> int:
        return (await self._ctx.chain.members()).mask(MemberState.HEALTHY)

    async def inquire(self, collector: Collector) -> None:
        """As a witness, ask peers for announcements that should be here by now, until the round is over."""
        height = self._plan.header.height
        before = self._results.plan(height - 1)
        while not self._over():
            await self._ctx.clock.sleep(ASK_EVERY)
            if self._slot not in witnesses(self._ctx.feed.run.current, await self._healthy()):
                continue
            if before is not None and (unheard := before.owing - self._results.announced(height - 1)):
                await collector.ask(height - 1, unheard, lambda _: False)
            if self._own_done is not None and (unheard := self._plan.owing - self._results.announced(height)):
                await collector.ask(height, unheard, lambda _: False)

    def _time_has_come(self, run: Run, healthy: int) -> bool:
        if run.state is RunState.ROUND_WITNESS or self._ctx.chain.now() >= _last_call(run):
            return True
        if self._own_done is None:
            return False
        height = self._plan.header.height
        before = self._results.plan(height - 1)
        missing = self._plan.owing - self._results.announced(height)
        if before is not None:
            missing |= before.owing - self._results.settled(height - 1)
        missing = frozenset(slot for slot in missing if bitmap.contains(healthy, slot))
        if self._out_of_patience():
            reachable = self._ctx.transport.reachable()
            missing = frozenset(s for s in missing if self._plan.slots[s].p2p in reachable)
        return not missing - {self._slot}

    def _out_of_patience(self) -> bool:
        done = self._own_done if self._own_done is not None else float("inf")
        return self._ctx.clock.monotonic() >= done + max(_PATIENCE, 2 * (done - self._started))

    async def _attest(self, duty: Duty) -> bool:
        """Send the attestation; whether it arrived."""
        height = self._plan.header.height
        before = self._results.plan(height - 1)
        held = self._results.held(height - 1) if before is not None else {}
        roster = before.header.roster if before is not None else 0
        started = self._ctx.clock.monotonic()
        sent = await duty.fulfil(
            lambda: self._ctx.chain.witness(
                self._slot,
                height,
                bitmap.from_slots(held),
                pack_fingerprints(held, roster, self._plan.header.seed),
                step=self._plan.header.step,
                loss=self.loss,
                tokens_per_sec=self.tokens_per_sec,
                bytes_per_sec=0.0,
            )
        )
        self._ctx.events.emit(
            "witnessed", height=height, held=len(held), sent=sent, seconds=self._ctx.clock.monotonic() - started
        )
        return sent


def _last_call(run: Run) -> float:
    """Chain time at which a witness waits no longer for anything, while the round still trains."""
    longest = run.config.max_round_train_time
    return run.state_started_at + longest - min(max(longest / 10, 1.0), 10.0)
