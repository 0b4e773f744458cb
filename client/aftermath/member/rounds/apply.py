"""Applying attested results to this member's replica: every round, in order, or none.

A round without an accepted result is not a step and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from aftermath.base.concurrency import Worker
from aftermath.events import event_types
from aftermath.events.stream import hexed
from aftermath.member.ports import Desync, Ports
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.resolve import RoundResolver
from aftermath.member.rounds.throughput import Throughput
from aftermath.optim.level_votes import Votes
from aftermath.rules.run import Round, Run


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
        hash_replicas: bool,
    ) -> None:
        self._ports = ports
        self._compute = compute
        self._carried = carried
        self._epoch = epoch
        self._resolver = resolver
        self._time = time
        self._hash_replicas = hash_replicas
        self._replica = epoch.start.replica
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
            attesting = run.round(self._epoch.rules.judges(height))
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

    async def _apply(self, run: Run, done: Round, attesting: Round) -> None:
        started = self._ports.clock.monotonic()
        settled = await self._resolver.settle(run, done, attesting)
        waited = self._ports.clock.monotonic() - started
        lr = self._epoch.learning_rate(done.step)
        self._carried.share.withdraw()
        if settled.accepted:
            await self._compute(lambda: self._take(settled.votes, lr, done))
        self._carried.results.applied(done.height)
        self._carried.gradients.keep(settled.results, lr)
        hashes = await self._compute(self._replica.hashes) if self._hash_replicas else {}
        seconds = self._ports.clock.monotonic() - started - waited
        if not self._ports.stall_detector.held_up_since(started):
            self._time.applied(seconds)
        self._ports.events.emit(
            event_types.Applied(
                epoch=self._epoch.number,
                height=done.height,
                step=done.step,
                results=len(settled.accepted),
                sequences=self._carried.results.sequences(done.height, settled.accepted),
                waited=waited,
                seconds=seconds,
                hashes=hexed(hashes),
            )
        )
