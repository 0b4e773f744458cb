"""Applying what a quorum attested, to this member's replica: every round, in order, or none any more.

Decided: a round without an accepted result is no step and changes nothing; what a joiner is offered of the model is
withdrawn before it changes.
"""

from __future__ import annotations

from collections.abc import Mapping

from aftermath.base.worker import Worker
from aftermath.member.ports import Desync, Ports
from aftermath.member.rounds.epoch import CarriedOver, Epoch
from aftermath.member.rounds.settle import Settling
from aftermath.member.rounds.sharetime import ShareTime
from aftermath.optim.votes import Votes
from aftermath.rules.run import Round, Run
from aftermath.watch import kinds
from aftermath.watch.events import hexed


class Applying:
    """Brings one replica through the rounds of one epoch."""

    def __init__(
        self,
        ports: Ports,
        compute: Worker,
        kept: CarriedOver,
        epoch: Epoch,
        settling: Settling,
        time: ShareTime,
        *,
        hash_replicas: bool,
    ) -> None:
        self._ports, self._compute, self._kept, self._epoch = ports, compute, kept, epoch
        self._settling, self._time, self._hash_replicas = settling, time, hash_replicas
        self._replica = epoch.began.replica
        self.height = -1
        """Of the newest round whose results are in the replica; -1 before the first."""
        self.step = epoch.began.run.trained_steps
        """How many steps are in the replica."""

    async def through(self, run: Run, last: int) -> None:
        """Apply every round up to height `last` that is not in the replica yet. Raises Desync."""
        while self.height < last:
            height = self.height + 1
            done, attesting = run.round(height), run.round(self._epoch.rules.judges(height))
            if done is None or attesting is None:
                raise Desync(f"round {height} is no longer stored")
            if done.batch:
                await self._apply(run, done, attesting)
            self.height = height

    def _take(self, votes: Mapping[int, list[Votes]], lr: float, done: Round) -> None:
        """Change the replica, on its thread: a cancelled caller does not stop that, so the counts change here too."""
        self._replica.apply(votes, lr)
        self.step = done.step
        self.height = done.height

    async def _apply(self, run: Run, done: Round, attesting: Round) -> None:
        started = self._ports.clock.monotonic()
        settled = await self._settling.settle(run, done, attesting)
        waited = self._ports.clock.monotonic() - started
        lr = self._epoch.learning_rate(done.step)
        self._kept.share.withdraw()
        if settled.accepted:
            await self._compute(lambda: self._take(settled.votes, lr, done))
        self._kept.results.applied(done.height)
        self._kept.gradients.keep(settled.results, lr)
        hashes = await self._compute(self._replica.hashes) if self._hash_replicas else {}
        seconds = self._ports.clock.monotonic() - started - waited
        if not self._ports.attention.held_up_since(started):
            self._time.applied(seconds)
        self._ports.events.emit(
            kinds.Applied(
                epoch=self._epoch.number,
                height=done.height,
                step=done.step,
                results=len(settled.accepted),
                sequences=self._kept.results.sequences(done.height, settled.accepted),
                waited=waited,
                seconds=seconds,
                hashes=hexed(hashes),
            )
        )
