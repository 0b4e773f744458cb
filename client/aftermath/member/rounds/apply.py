"""Decide which results of a judged round are applied, fetch them, and apply them to the replica.

Every round is applied, in order, or none. A round without an accepted result is not a step and
changes nothing. A member abandons the epoch rather than apply fewer results than the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from aftermath.base.concurrency import Worker, cancel, first_of
from aftermath.coordinator.errors import Refused
from aftermath.events import event_types
from aftermath.events.stream import Events, hexed
from aftermath.member.announced_results import Results
from aftermath.member.evidence import disputed
from aftermath.member.payloads import Candidate
from aftermath.member.ports import Desync, Ports
from aftermath.member.rounds.collect import Collector
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.throughput import Throughput
from aftermath.optim.level_votes import Votes
from aftermath.rules.availability import fetched_by_all, judged_by
from aftermath.rules.consensus import Fingerprint, consensus, vouched
from aftermath.rules.run import Round, Run


class BackgroundTasks:
    """The background tasks of one epoch. A failure ends only its own task and is reported."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._finished)

    async def stop(self) -> None:
        """Cancel the remaining tasks, and wait until all have ended."""
        await cancel(self._running)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.emit(
                event_types.Warning(message=f"a background task of this round failed: {error}")
            )


@dataclass(frozen=True)
class Settled:
    """The results of one round that all members apply."""

    accepted: Mapping[int, Fingerprint]
    """Fingerprints, by seat, that a quorum recorded. If empty, the round is not a step."""
    results: Sequence[Candidate]
    votes: Mapping[int, list[Votes]]
    """Votes by held level, in seat order."""


@dataclass(frozen=True)
class _Unreported:
    """A round that is being applied, and what its event states."""

    done: Round
    settled: Settled
    lr: float
    sequences: list[list[int]]
    started: float
    waited: float
    """Seconds until all results were here."""


class RoundResolver:
    """Settles the rounds of one epoch for one member."""

    def __init__(
        self, ports: Ports, levels: range, results: Results, epoch: Epoch, tasks: BackgroundTasks
    ) -> None:
        self._ports = ports
        self._levels = levels
        self._results = results
        self._epoch = epoch
        self._tasks = tasks
        self.collector = Collector(ports, levels, results, epoch.number)

    async def settle(self, run: Run, done: Round, attesting: Round) -> Settled:
        """Return what to apply of round `done`, by the attestations in round `attesting`. Raises
        Desync.

        `run` may be any view of the epoch that still stores both rounds. Any attester can serve
        the levels that all witnesses fetch; a member that missed the round learns of them from the
        chain.
        """
        run = replace(run, config=self._epoch.rules)  # the run's rules may have changed since
        members = self._epoch.members
        try:
            attestations = await self._ports.coordinator.attestations(attesting)
        except Refused as error:
            raise Desync(str(error)) from error
        # In a running round, `attested` names the members that attested in it. When the chain
        # closes the round, it replaces them by the members whose results were recorded.
        is_running = run.state.training and attesting.height == run.current.height
        decided = replace(attesting, attested=done.roster) if is_running else attesting
        accepted = consensus(decided, attestations, done.roster)
        if disputed_seats := disputed(attestations, done.roster) & self._results.announced(
            done.height
        ):
            self._tasks.start(self.collector.ask(done.height, disputed_seats, lambda _: False))
        witnesses = {members.seats[one.seat].p2p for one in attestations}
        judged = judged_by(attesting, run, members)
        self._results.payloads.note_fetched_by_all(
            done.height, fetched_by_all(judged, attesting, run, members), witnesses
        )
        levels = vouched(accepted, attestations, done.roster, run, members, self._levels, judged)
        results = await self._collect(done.height, attesting.salt, accepted, levels)
        self._report_left_out(done.height, results, levels)
        return Settled(accepted, results, self.collector.by_level(results, levels))

    async def _collect(
        self,
        height: int,
        salt: int,
        accepted: Mapping[int, Fingerprint],
        vouched: Mapping[int, frozenset[int]],
    ) -> list[Candidate]:
        """Return the accepted results of a round.

        Raises Desync if they are still missing one round's time after the epoch ended. The next
        epoch may wait for this member, and then the chain never reports that it is too late.
        """

        async def give_up() -> NoReturn:
            await self._ports.feed.until(lambda now: now.epoch != self._epoch.number)
            await self._ports.clock.sleep(self._epoch.rules.max_round_train_time)
            raise Desync(f"the epoch is over and no peer has all results of round {height}")

        return await first_of(self.collector.collect(height, salt, accepted, vouched), give_up())

    def _report_left_out(
        self, height: int, results: Sequence[Candidate], vouched: Mapping[int, frozenset[int]]
    ) -> None:
        for result in results:
            seat = result.commitment.seat
            if levels := [
                level
                for level in vouched
                if level >= result.commitment.tier and seat not in vouched[level]
            ]:
                names = f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"
                why = f"{names} left out: too few of its judging witnesses hold it"
                self._ports.events.emit(event_types.PeerRefused(height=height, seat=seat, why=why))


class Applying:
    """Applies the rounds of one epoch to one replica."""

    def __init__(
        self,
        ports: Ports,
        compute: Worker,
        carried: CarriedOver,
        epoch: Epoch,
        resolver: RoundResolver,
        time: Throughput,
        *,
        applied: Callable[[int, Sequence[Candidate]], None],
        hash_replicas: bool,
    ) -> None:
        """Call `applied` with the height and the accepted results of each applied round."""
        self._ports = ports
        self._compute = compute
        self._carried = carried
        self._epoch = epoch
        self._resolver = resolver
        self._time = time
        self._on_applied = applied
        self._hash_replicas = hash_replicas
        self._replica = epoch.start.replica
        self._unreported: _Unreported | None = None
        self.height = -1
        """Height of the newest round in the replica; -1 before the first."""
        self.step = epoch.start.run.trained_steps
        """Number of steps in the replica.

        Counted here because with overlap, a header's step also counts the previous round, which may
        turn out not to be a step.
        """

    async def through(self, run: Run, last: int) -> None:
        """Apply every missing round up to height `last`. Raises Desync."""
        while self.height < last:
            height = self.height + 1
            done = run.round(height)
            attesting = run.round(self._epoch.rules.attesting_round(height))
            if done is None or attesting is None:
                raise Desync(f"round {height} is no longer stored")
            if done.batch:
                await self._apply(run, done, attesting)
            self.height = height

    def _take(self, votes: Mapping[int, list[Votes]], lr: float, done: Round) -> None:
        """Change the replica, on its thread.

        Cancelling the caller does not stop that, so the counts change here too.
        """
        self._replica.apply(votes, lr)
        self.step += 1
        self.height = done.height

    async def finish(self) -> None:
        """Wait for an apply whose caller was cancelled, and report its round like any other."""
        await self._compute(lambda: None)
        if self._unreported is not None and self._unreported.done.height <= self.height:
            await self._report(self._unreported)

    async def _apply(self, run: Run, done: Round, attesting: Round) -> None:
        started = self._ports.clock.monotonic()
        settled = await self._resolver.settle(run, done, attesting)
        waited = self._ports.clock.monotonic() - started
        lr = self._epoch.learning_rate(done.step)
        sequences = self._carried.results.sequences(done.height, settled.accepted)
        self._carried.share.withdraw()
        self._unreported = _Unreported(done, settled, lr, sequences, started, waited)
        if settled.accepted:
            await self._compute(lambda: self._take(settled.votes, lr, done))
        await self._report(self._unreported)

    async def _report(self, applied: _Unreported) -> None:
        """Save the results of an applied round if requested, and emit its event."""
        height = applied.done.height
        self._carried.results.applied(height)
        self._on_applied(height, applied.settled.results)
        hashes = await self._compute(self._replica.hashes) if self._hash_replicas else {}
        # Cancellation cannot separate the following lines, so each round is reported once.
        self._unreported = None
        self._carried.gradients.keep(applied.settled.results, applied.lr)
        seconds = self._ports.clock.monotonic() - applied.started - applied.waited
        if not self._ports.stall_detector.held_up_since(applied.started):
            self._time.applied(seconds)
        self._ports.events.emit(
            event_types.Applied(
                epoch=self._epoch.number,
                height=height,
                step=applied.done.step,
                results=len(applied.settled.accepted),
                sequences=applied.sequences,
                waited=applied.waited,
                seconds=seconds,
                hashes=hexed(hashes),
            )
        )
