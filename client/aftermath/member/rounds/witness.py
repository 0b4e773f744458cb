"""A witness's duty in one round: attest what the members delivered in the round that is judged, this or the one before.

Choices:
- it speaks as soon as it holds every result of the judged round and everybody has announced this round's, so a round
  lasts as long as its slowest member needs; nobody is waited for longer than `lateness` says;
- members out of reach are waited for a little, then not at all; others until shortly before the round's time is up at
  most, since RoundWitness may last less than a transaction takes and a missing quorum ends the epoch;
- whose result it had to do without in its last attestation, although it had those of two thirds, it does not wait for
  in the next: what comes while it waits for the others counts as ever, and nobody makes one round after the other take
  its whole time by hiding a part of its result from some. Not so without overlap: who was late once would have nobody
  wait for it any more, while with overlap its result has the whole next round to arrive;
- it is closed as soon as everybody has announced a result of the judged round, else when it waits for nobody any more,
  and at the latest when results can just be opened before its last call: what is announced later may be a copy, and it
  does not attest that. Only then are results opened, so what is missing after that are keys, for which nobody needs
  long;
- held up itself, it gives the others the time of a round again: they may have been, and their results are on their way.
  It then speaks only a little after it holds them all, because its word opens RoundWitness for those who do not yet;
- what it attests is only what it holds and has checked itself, and besides has where few holders are drawn
  (`rules.availability`); what is known to be worthless is not waited for;
- announcements that never came are asked for, so that a lost message costs nobody its share.
"""

from __future__ import annotations

from aftermath.base.wait import first_of
from aftermath.member.opening import Opening
from aftermath.member.persist import Duty
from aftermath.member.plan import RoundPlan
from aftermath.member.ports import Ports
from aftermath.member.results import Results
from aftermath.member.rounds.collect import ASK_EVERY, Collector
from aftermath.member.rounds.lateness import Allowances, Lateness
from aftermath.rules import bitmap
from aftermath.rules.availability import drawn, had_by_all, judged_by
from aftermath.rules.committee import quorum, witnesses
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Config, RoundId, Run
from aftermath.rules.state import MemberState, RunState
from aftermath.watch import kinds

_PATIENCE = 3.0  # seconds, and twice the time our own share took, for members out of reach
_LOOK_AGAIN = 0.5
_MOST_GRACE = 50.0  # seconds; less than what `ticker` gives
_MOST_OPENING = 1.0  # seconds before its last call, and after it, that a witness leaves for two messages
_SETTLE = 1.0  # seconds that a result may take from the first who holds it to the last


class WitnessDuty:
    """Attests in one round, if this member is elected for it; `judged` is the height of the round that it attests."""

    def __init__(
        self,
        ports: Ports,
        results: Results,
        opening: Opening,
        allowances: Allowances,
        seat: int,
        plan: RoundPlan,
        judged: int,
        before: WitnessDuty | None = None,
    ) -> None:
        """`before`: the duty in the round before, if this member had one."""
        self._ports, self._results, self._seat, self._plan, self._judged = ports, results, seat, plan, judged
        self._opening, self._closed = opening, False
        if results.plan(judged) is not None:  # the first round may judge none
            run, members = ports.feed.run, ports.feed.members
            witnesses = {plan.seats[number].p2p for number in drawn(plan.header, run, members)}
            by_all = had_by_all(judged_by(plan.header, run, members), plan.header, run, members)
            results.payloads.will_be_had(judged, by_all, witnesses)
        self._may_open: float | None = None
        """When a quorum of witnesses was closed, as far as this member heard."""
        self._before = before  # which may still be sending its attestation
        if before is not None:
            before._before = None
            if before._plan.header.height + 1 == plan.header.height:
                before._closes(ports.clock.monotonic() - self._age())
        self.lacked = frozenset[int]()
        """Whose results the attestation did without, unless they were so many that it says nothing of them."""
        self._started = ports.clock.monotonic()
        self._lateness = Lateness(allowances, plan, self._started - self._age())
        self._sent_before = _sent(ports)
        self._own_done: float | None = None
        self._complete = float("inf")
        """When this member had nothing left to wait for."""
        self.loss, self.tokens_per_sec = 0.0, 0.0

    def _age(self) -> float:
        """Seconds for which the round had gone on when this member came to it: it may be slow itself. The chain counts
        whole ones.
        """
        run = self._ports.feed.run
        trains = run.state is RunState.ROUND_TRAIN and run.current.height == self._plan.header.height
        return max(0.0, self._ports.coordinator.now() - run.state_started_at - 1) if trains else 0.0

    def _closes(self, now: float) -> None:
        """The chain says of a round that is over whom its witnesses did without, unless they were so many that it says
        nothing of them.
        """
        judged, closed = self._results.plan(self._judged), self._ports.feed.run.round(self._plan.header.height)
        if judged is None or closed is None or self._ports.attention.held_up_since(self._started):
            return
        delivered = frozenset(seat for seat in judged.owing if bitmap.contains(closed.attested, seat))
        if len(delivered) >= quorum(len(judged.owing)):
            self._lateness.closes(judged.owing - delivered, now)

    def own_share_done(self, loss: float, tokens_per_sec: float) -> None:
        """Our own training of this round is over, with or without a result."""
        self._own_done = self._ports.clock.monotonic()
        self.loss, self.tokens_per_sec = loss, tokens_per_sec
        self._results.changed.fire()

    def _over(self) -> bool:
        run = self._ports.feed.run
        training = run.state.training
        return run.epoch != self._plan.epoch or not training or run.current.height != self._plan.header.height

    async def attend(self) -> None:
        """Attest once the time has come; returns when that is done, refused for good, or the round is over.

        Who is no witness waits too: it becomes one when others leave.
        """
        try:
            await self._attend()
        finally:
            self._results.has_attested(self._judged)

    async def _attend(self) -> None:
        name = f"the attestation of round {self._plan.header.height}"
        duty = Duty(self._ports, name, wanted=lambda: not self._over())
        while not self._over() and not duty.refused:
            run, healthy = self._ports.feed.run, self._healthy()
            elected = self._is_elected()
            if elected:
                self._results.have_for_others(self._judged)
            missing = self._waited_for(healthy)
            if elected and not self._closed and self._nobody_else(run, healthy, missing):
                await self._close()
                continue
            due = duty.due and elected and self._time_has_come(run, missing)
            if due and (await self._attest(duty) or bitmap.contains(self._ports.feed.run.current.attested, self._seat)):
                return
            await first_of(
                self._results.changed.wait(), self._ports.feed.after(run.seq), self._ports.clock.sleep(_LOOK_AGAIN)
            )

    def _healthy(self) -> int:
        return self._ports.feed.members.mask(MemberState.HEALTHY)

    def _is_elected(self) -> bool:
        return self._seat in witnesses(self._ports.feed.run.current, self._ports.feed.members)

    async def inquire(self, collector: Collector) -> None:
        """Ask peers for announcements that should be here by now, until the round is over: as a witness for results and
        keys, and as anybody for who is closed.
        """
        while not self._over():
            await self._ports.clock.sleep(ASK_EVERY)
            elected = self._is_elected()
            for height in sorted({self._judged, self._plan.header.height}):
                plan = self._results.plan(height)
                due = height < self._plan.header.height or self._own_done is not None
                if plan is not None and due and (unheard := self._unheard(plan, elected)):
                    await collector.ask(height, unheard, lambda _: False)

    def _unheard(self, plan: RoundPlan, elected: bool) -> frozenset[int]:
        """Who has announced something of a round that should be here."""
        height = plan.header.height
        unheard = plan.owing - self._results.announced(height) if elected else frozenset()
        if height != self._judged or not plan.owing:
            return unheard
        if still_open := self._results.closings.missing(height):
            return unheard | still_open
        return unheard | (self._results.sealed(height) if elected else frozenset())

    def _waited_for(self, healthy: int) -> frozenset[int]:
        """Whose announcement or result is missing and still waited for."""
        due, judged = self._plan.owing, self._results.plan(self._judged)
        missing, sealed = due - self._results.announced(self._plan.header.height), frozenset[int]()
        if judged is not None:
            due |= judged.owing
            fetched = self._results.fetched(self._judged)
            missing |= judged.owing - fetched
            sealed = judged.owing & fetched - self._results.settled(self._judged)
        overlaps = self._judged < self._plan.header.height
        failing = self._before.lacked if self._before is not None and overlaps else frozenset()
        due = frozenset(seat for seat in due if bitmap.contains(healthy, seat))
        there, missing, sealed = due - missing, due & missing - failing, due & sealed - failing
        if self._out_of_patience():
            here = self._ports.transport.reachable() | {self._ports.transport.node_id}
            missing, sealed = (frozenset(s for s in x if self._plan.seats[s].p2p in here) for x in (missing, sealed))
        if self._own_done is not None:
            missing -= {self._seat}  # it works no longer: what is missing will not come
        now = self._ports.clock.monotonic()
        if self._may_open is None and self._closed and self._results.closings.by_quorum(self._judged):
            self._may_open = now
        if not self._ports.attention.held_up_since(self._started):  # else what has passed says nothing of anybody
            missing = self._lateness.waited_for(due, there, missing, now)
            if self._may_open is not None:
                sealed = self._lateness.opening(sealed, now - self._may_open)
        return (missing | sealed if self._closed else missing) - {self._seat}

    def _nobody_else(self, run: Run, healthy: int, missing: frozenset[int]) -> bool:
        """Whether everybody has announced a result of the judged round, or nobody is waited for any more."""
        judged = self._results.plan(self._judged)
        if judged is None or not judged.owing:
            return False
        if run.state is RunState.ROUND_WITNESS or self._too_late_to_wait(run, _for_opening(run.config)):
            return True
        done = self._own_done is not None
        unheard = judged.owing - self._results.announced(self._judged)
        if done:
            unheard -= {self._seat}  # it makes none
        return not any(bitmap.contains(healthy, seat) for seat in unheard) or (done and not missing)

    async def _close(self) -> None:
        judged = self._results.plan(self._judged)
        self._closed = True
        if judged is not None:
            await self._opening.close_round(judged, self._seat)

    def _time_has_come(self, run: Run, missing: frozenset[int]) -> bool:
        if run.state is RunState.ROUND_WITNESS or self._too_late_to_wait(run, -_for_opening(run.config)):
            return True
        if self._too_late_to_wait(run):
            return not missing & self._results.fetched(self._judged) - self._results.settled(self._judged)
        if self._own_done is None or missing:
            return False
        now = self._ports.clock.monotonic()
        self._complete = min(self._complete, now)
        return self._ports.coordinator.now() < _last_call(run) or now >= self._complete + _SETTLE

    def _too_late_to_wait(self, run: Run, before: float = 0.0) -> bool:
        """Whether the last call has come, or was to come so many seconds later."""
        grace = self._ports.attention.woke() + min(_longest_wait(run.config), _MOST_GRACE) - before
        late = self._ports.coordinator.now() >= _last_call(run) - before
        return late and self._ports.clock.monotonic() >= grace

    def _out_of_patience(self) -> bool:
        done = self._own_done if self._own_done is not None else float("inf")
        since = max(done, self._ports.attention.woke())
        return self._ports.clock.monotonic() >= since + max(_PATIENCE, 2 * (done - self._started))

    def _bytes_per_second(self) -> float:
        """What this member has sent to its peers in this round, by the time that has passed in it."""
        seconds = self._ports.clock.monotonic() - self._started
        return (_sent(self._ports) - self._sent_before) / seconds if seconds > 0 else 0.0

    async def _attest(self, duty: Duty) -> bool:
        """Send the attestation; whether it arrived."""
        header, judged = self._plan.header, self._results.plan(self._judged)
        roster = judged.header.roster if judged is not None else 0
        held: dict[int, bytes] = {}

        async def witness() -> None:
            """What is held now: while the chain was out of reach, more may have come."""
            nonlocal held
            held = self._results.held(self._judged) if judged is not None else {}
            await self._ports.coordinator.witness(
                self._seat,
                RoundId(self._plan.epoch, header.height, header.seed),
                bitmap.from_seats(held),
                pack_fingerprints(held, roster, header.salt),
                step=header.step,
                loss=self.loss,
                tokens_per_sec=self.tokens_per_sec,
                bytes_per_sec=self._bytes_per_second(),
            )

        started = self._ports.clock.monotonic()
        sent = await duty.fulfil(witness)
        owing = judged.owing if judged is not None else frozenset()
        self.lacked = owing - held.keys() if len(held) >= quorum(len(owing)) else frozenset()
        seconds = self._ports.clock.monotonic() - started
        self._ports.events.emit(kinds.Witnessed(height=header.height, held=len(held), sent=sent, seconds=seconds))
        return sent


def _sent(ports: Ports) -> int:
    return sum(ports.transport.stats().sent.values())


def _last_call(run: Run) -> float:
    """Chain time at which a witness waits no longer for anything, while the round still trains."""
    return run.state_started_at + _longest_wait(run.config)


def _longest_wait(config: Config) -> float:
    """Seconds of a round for which a witness waits: of a short one half, as there would be nothing to attest."""
    longest = config.max_round_train_time
    return longest - min(max(longest / 10, 1.0), 10.0, longest / 2)


def _for_opening(config: Config) -> float:
    """Seconds between the latest moment at which a witness is closed and its last call, and as many for who is slow to
    open after that: of a short round a twentieth.
    """
    return min(_MOST_OPENING, config.max_round_train_time / 20)


def time_for_results(config: Config) -> float:
    """Seconds that a member has for its work of a round. Without overlap its witnesses wait for that, and the result
    still has its way before it, and the chain counts whole seconds.
    """
    longest = config.max_round_train_time
    in_time = _longest_wait(config) - _for_opening(config) - 1.0
    return longest if config.overlap else max(in_time, longest / 2)
