"""A witness's duty in one round: attest what members delivered in the judged round.

It attests as soon as it holds every judged result and all members have announced this round's, and
waits no longer than `stragglers` allows. It attests only what it holds and has checked, plus levels
that all witnesses fetch (`rules.availability`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aftermath.base.concurrency import first_of
from aftermath.coordinator.errors import Refusal, Refused
from aftermath.events import event_types
from aftermath.member.announced_results import Results
from aftermath.member.ports import Ports
from aftermath.member.retry import Duty, persist
from aftermath.member.reveal import Reveals
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.collect import ASK_EVERY, Collector
from aftermath.member.rounds.stragglers import Allowances, StragglerTracker
from aftermath.rules import bitmap
from aftermath.rules.availability import drawn, fetched_by_all, judged_by
from aftermath.rules.committee import quorum, witnesses
from aftermath.rules.consensus import pack_fingerprints
from aftermath.rules.run import Config, RoundId, Run
from aftermath.rules.state import MemberState, RunState

_PATIENCE = 3.0  # seconds to wait for unreachable members; at least twice the time of our share
_LOOK_AGAIN = 0.5
_MOST_GRACE = 50.0  # seconds; below the longest extension of `ticker`
_MOST_OPENING = 1.0  # seconds for two messages before and after the last call
_SETTLE = 1.0  # seconds for a result to spread from its first holder to its last


class WitnessDuty:
    """Attests in one round if this member is elected. `judged`: height of the attested round."""

    def __init__(
        self,
        ports: Ports,
        results: Results,
        reveals: Reveals,
        allowances: Allowances,
        seat: int,
        plan: RoundPlan,
        judged: int,
        previous: WitnessDuty | None = None,
    ) -> None:
        """`previous`: the duty in the last round, if this member had one."""
        self._ports = ports
        self._results = results
        self._seat = seat
        self._plan = plan
        self._judged = judged
        self._reveals = reveals
        self._closed = False
        if results.plan(judged) is not None:  # with overlap, the first round judges no round
            run = ports.feed.run
            members = ports.feed.members
            witnesses = {plan.seats[number].p2p for number in drawn(plan.header, run, members)}
            by_all = fetched_by_all(judged_by(plan.header, run, members), plan.header, run, members)
            results.payloads.note_fetched_by_all(judged, by_all, witnesses)
        self._reveal_since: float | None = None
        """When this member first knew that a quorum of witnesses had closed."""
        self._previous = previous  # it may still be sending its attestation
        if previous is not None:
            previous._previous = None
            if previous._plan.header.height + 1 == plan.header.height:
                previous._note_missed(ports.clock.monotonic() - self._age())
        self.missed = frozenset[int]()
        """Members missing from the attestation. Empty if it covered fewer than two thirds."""
        self._started = ports.clock.monotonic()
        self._stragglers = StragglerTracker(allowances, plan, self._started - self._age())
        self._sent_before = _sent(ports)
        self._own_done_at: float | None = None
        self._complete_since = float("inf")
        """When this member had nothing left to wait for."""
        self.loss = 0.0
        self.tokens_per_sec = 0.0
        self._unanswered: Callable[[], Awaitable[None]] | None = None
        """Sends the attestation. None before it is sent and after the coordinator answered."""

    def _age(self) -> float:
        """Return the seconds since the round's start on chain, whose clock has whole seconds."""
        run = self._ports.feed.run
        trains = (
            run.state is RunState.ROUND_TRAIN and run.current.height == self._plan.header.height
        )
        return max(0.0, self._ports.coordinator.now() - run.state_started_at - 1) if trains else 0.0

    def _note_missed(self, now: float) -> None:
        """Record the members whose result the witnesses missed, unless too many were missing."""
        judged = self._results.plan(self._judged)
        closed = self._ports.feed.run.round(self._plan.header.height)
        if (
            judged is None
            or closed is None
            or self._ports.stall_detector.held_up_since(self._started)
        ):
            return
        delivered = frozenset(
            seat for seat in judged.owing if bitmap.contains(closed.attested, seat)
        )
        if len(delivered) >= quorum(len(judged.owing)):
            self._stragglers.round_closed(judged.owing - delivered, now)

    def own_share_done(self, loss: float, tokens_per_sec: float) -> None:
        """Record that our own training of this round is over, with or without a result."""
        self._own_done_at = self._ports.clock.monotonic()
        self.loss = loss
        self.tokens_per_sec = tokens_per_sec
        self._results.changed.fire()

    def _over(self) -> bool:
        return self._is_past(self._ports.feed.run)

    def _is_past(self, run: Run) -> bool:
        """Return whether this duty's round is over."""
        training = run.state.training
        return (
            run.epoch != self._plan.epoch
            or not training
            or run.current.height != self._plan.header.height
        )

    async def attend(self) -> None:
        """Attest when it is time. Return once attested, finally refused, or after the round.

        A member that is not a witness waits too, because it becomes one when others leave.
        """
        try:
            await self._attend()
        finally:
            self._results.stop_for_others(self._judged)

    async def _attend(self) -> None:
        name = f"the attestation of round {self._plan.header.height}"
        duty = Duty(self._ports, name, still_wanted=lambda: not self._over())
        while not self._over() and not duty.refused:
            run = self._ports.feed.run
            healthy = self._healthy()
            elected = self._is_elected()
            if elected:
                self._results.fetch_for_others(self._judged)
            missing = self._waited_for(healthy)
            if elected and not self._closed and self._nobody_else(run, healthy, missing):
                await self._close()
                continue
            due = duty.due and elected and self._time_has_come(run, missing)
            if due and (
                await self._attest(duty)
                or bitmap.contains(self._ports.feed.run.current.attested, self._seat)
            ):
                return
            await first_of(
                self._results.changed.wait(),
                self._ports.feed.after(run.seq),
                self._ports.clock.sleep(_LOOK_AGAIN),
            )

    async def finish(self) -> None:
        """Decide whether the attestation counts if `attend` was cancelled while sending it.

        Send it again and return once the coordinator's view shows it, or a later round. Return at
        once if the coordinator refuses it for another reason. Retry while there is no answer.
        """
        if self._unanswered is None:
            return
        try:
            await persist(self._ports.clock, self._unanswered, still_wanted=lambda: True)
        except Refused as refused:
            if refused.reason not in (Refusal.ALREADY_DONE, Refusal.WRONG_STATE):
                return
            # A refusal is about the newest block, and views wait until blocks are confirmed.
            while not self._is_decided((await self._ports.coordinator.view(fresh=True)).run):
                await self._ports.clock.sleep(_LOOK_AGAIN)
        self._unanswered = None

    def _is_decided(self, run: Run) -> bool:
        """Return whether this member has attested, or no longer can."""
        return self._is_past(run) or bitmap.contains(run.current.attested, self._seat)

    def _healthy(self) -> int:
        return self._ports.feed.members.mask(MemberState.HEALTHY)

    def _is_elected(self) -> bool:
        return self._seat in witnesses(self._ports.feed.run.current, self._ports.feed.members)

    async def request_missing(self, collector: Collector) -> None:
        """Ask peers for missing announcements until the round is over.

        A witness asks for results and keys; every member asks which witnesses closed the round.
        So a lost message costs no member its share.
        """
        while not self._over():
            await self._ports.clock.sleep(ASK_EVERY)
            elected = self._is_elected()
            for height in sorted({self._judged, self._plan.header.height}):
                plan = self._results.plan(height)
                due = height < self._plan.header.height or self._own_done_at is not None
                if plan is not None and due and (unheard := self._unheard(plan, elected)):
                    await collector.ask(height, unheard, lambda _: False)

    def _unheard(self, plan: RoundPlan, elected: bool) -> frozenset[int]:
        """Return the members without an expected announcement."""
        height = plan.header.height
        unheard = plan.owing - self._results.announced(height) if elected else frozenset()
        if height != self._judged or not plan.owing:
            return unheard
        if still_open := self._results.closed_rounds.missing(height):
            return unheard | still_open
        return unheard | (self._results.sealed(height) if elected else frozenset())

    def _waited_for(self, healthy: int) -> frozenset[int]:
        """Return the members whose announcement or result is missing and still waited for."""
        # With overlap, skip members that were missing from our previous attestation if that one
        # covered two thirds. Otherwise a member could stretch every round to its full time by
        # hiding part of its result from some. Their results still count if they arrive while we
        # wait for others. Without overlap, a member that was late once would never be waited for.
        due = self._plan.owing
        judged = self._results.plan(self._judged)
        missing = due - self._results.announced(self._plan.header.height)
        sealed = frozenset[int]()
        if judged is not None:
            due |= judged.owing
            fetched = self._results.fetched(self._judged)
            missing |= judged.owing - fetched
            sealed = judged.owing & fetched - self._results.settled(self._judged)
        overlaps = self._judged < self._plan.header.height
        failing = self._previous.missed if self._previous is not None and overlaps else frozenset()
        due = frozenset(seat for seat in due if bitmap.contains(healthy, seat))
        delivered = due - missing
        missing = due & missing - failing
        sealed = due & sealed - failing
        if self._out_of_patience():
            reachable = self._reachable_seats()
            missing &= reachable
            sealed &= reachable
        if self._own_done_at is not None:
            missing -= {self._seat}  # our own training is over, so nothing more will come
        now = self._ports.clock.monotonic()
        if (
            self._reveal_since is None
            and self._closed
            and self._results.closed_rounds.by_quorum(self._judged)
        ):
            self._reveal_since = now
        if not self._ports.stall_detector.held_up_since(
            self._started
        ):  # after a stall, elapsed time says nothing about others
            missing = self._stragglers.waited_for(due, delivered, missing, now)
            if self._reveal_since is not None:
                sealed = self._stragglers.waited_for_keys(sealed, now - self._reveal_since)
        return (missing | sealed if self._closed else missing) - {self._seat}

    def _reachable_seats(self) -> frozenset[int]:
        """Return the seats of this member and of all members that it is connected to."""
        node_ids = self._ports.transport.reachable() | {self._ports.transport.node_id}
        return frozenset(
            seat for seat, member in enumerate(self._plan.seats) if member.p2p in node_ids
        )

    def _nobody_else(self, run: Run, healthy: int, missing: frozenset[int]) -> bool:
        """Return whether no further result of the judged round is expected."""
        judged = self._results.plan(self._judged)
        if judged is None or not judged.owing:
            return False
        if run.state is RunState.ROUND_WITNESS or self._too_late_to_wait(
            run, _reveal_seconds(run.config)
        ):
            return True
        done = self._own_done_at is not None
        unheard = judged.owing - self._results.announced(self._judged)
        if done:
            unheard -= {self._seat}  # this member will not announce one
        return not any(bitmap.contains(healthy, seat) for seat in unheard) or (done and not missing)

    # A result announced after the closing may be a copy, so this witness does not attest it.
    # Members reveal their keys only after the closing.
    async def _close(self) -> None:
        judged = self._results.plan(self._judged)
        self._closed = True
        if judged is not None:
            await self._reveals.close_round(judged, self._seat)

    def _time_has_come(self, run: Run, missing: frozenset[int]) -> bool:
        if run.state is RunState.ROUND_WITNESS or self._too_late_to_wait(
            run, -_reveal_seconds(run.config)
        ):
            return True
        if self._too_late_to_wait(run):
            return not missing & self._results.fetched(self._judged) - self._results.settled(
                self._judged
            )
        if self._own_done_at is None or missing:
            return False
        now = self._ports.clock.monotonic()
        self._complete_since = min(self._complete_since, now)
        return (
            self._ports.coordinator.now() < _last_call(run) or now >= self._complete_since + _SETTLE
        )

    # RoundWitness may be shorter than a transaction takes, and a missing quorum ends the epoch. So
    # witnesses stop waiting shortly before the round's time is up.
    def _too_late_to_wait(self, run: Run, margin: float = 0.0) -> bool:
        """Return whether the last call has come, or will come within `margin` seconds."""
        grace = (
            self._ports.stall_detector.woke() + min(_longest_wait(run.config), _MOST_GRACE) - margin
        )
        late = self._ports.coordinator.now() >= _last_call(run) - margin
        return late and self._ports.clock.monotonic() >= grace

    def _out_of_patience(self) -> bool:
        done = self._own_done_at if self._own_done_at is not None else float("inf")
        since = max(done, self._ports.stall_detector.woke())
        return self._ports.clock.monotonic() >= since + max(_PATIENCE, 2 * (done - self._started))

    def _bytes_per_second(self) -> float:
        """Return the bytes per second that this member has sent to its peers in this round."""
        seconds = self._ports.clock.monotonic() - self._started
        return (_sent(self._ports) - self._sent_before) / seconds if seconds > 0 else 0.0

    async def _attest(self, duty: Duty) -> bool:
        """Send the attestation. Return whether it arrived."""
        header = self._plan.header
        judged = self._results.plan(self._judged)
        roster = judged.header.roster if judged is not None else 0
        digests: dict[int, bytes] = {}

        async def witness() -> None:
            """Attest the current results: more may have arrived during an outage."""
            nonlocal digests
            digests = self._results.attestable(self._judged) if judged is not None else {}
            await self._ports.coordinator.witness(
                self._seat,
                RoundId(self._plan.epoch, header.height, header.seed),
                bitmap.from_seats(digests),
                pack_fingerprints(digests, roster, header.salt),
                step=header.step,
                loss=self.loss,
                tokens_per_sec=self.tokens_per_sec,
                bytes_per_sec=self._bytes_per_second(),
            )

        started = self._ports.clock.monotonic()
        self._unanswered = witness
        sent = await duty.fulfil(witness)
        self._unanswered = None
        owing = judged.owing if judged is not None else frozenset()
        self.missed = owing - digests.keys() if len(digests) >= quorum(len(owing)) else frozenset()
        seconds = self._ports.clock.monotonic() - started
        self._ports.events.emit(
            event_types.Witnessed(
                height=header.height, held=len(digests), sent=sent, seconds=seconds
            )
        )
        return sent


def _sent(ports: Ports) -> int:
    return sum(ports.transport.stats().sent.values())


def _last_call(run: Run) -> float:
    """Return the chain time at which a witness stops waiting, while the round still trains."""
    return run.state_started_at + _longest_wait(run.config)


def _longest_wait(config: Config) -> float:
    """Return the longest wait in seconds: at least half of a round, so that results can arrive."""
    longest = config.max_round_train_time
    return longest - min(max(longest / 10, 1.0), 10.0, longest / 2)


def _reveal_seconds(config: Config) -> float:
    """Return the seconds that reveals get before and after the last call.

    In a short round it is a twentieth of the round.
    """
    return min(_MOST_OPENING, config.max_round_train_time / 20)


def time_for_results(config: Config) -> float:
    """Return the seconds that a member has for its work of a round.

    Without overlap, witnesses wait for the result, which needs time to travel; the chain counts
    whole seconds.
    """
    longest = config.max_round_train_time
    in_time = _longest_wait(config) - _reveal_seconds(config) - 1.0
    return longest if config.overlap else max(in_time, longest / 2)
