"""Train this member's share of a round, as long as the result can still be used.

The member reads a share's sequences as soon as the share is known, before it applies results.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import NoReturn

import torch

from aftermath.base.concurrency import Worker, first_of
from aftermath.base.rate_limit import Backoff
from aftermath.data.source import Sequences, Source, SourceUnavailable
from aftermath.events import event_types
from aftermath.member.ports import Ports
from aftermath.member.round_plan import RoundPlan
from aftermath.member.rounds.epoch import Divergence, Epoch
from aftermath.member.rounds.throughput import Throughput
from aftermath.optim.engine import Trained
from aftermath.optim.gradient_clip import NonFiniteGradient
from aftermath.replica.replica import Cancelled

_FIRST_PAUSE = 1.0  # seconds before the first retry of an unreachable source
_LONGEST_PAUSE = 30.0


class Reading:
    """Reads shares ahead for one member, one at a time on its own thread.

    It does not wait for an abandoned share.
    """

    def __init__(self, ports: Ports, worker: Worker, source: Source) -> None:
        self._ports = ports
        self._worker = worker
        self._source = source
        self._indices: tuple[int, ...] = ()
        self._task: asyncio.Task[Sequences] | None = None

    def begin(self, indices: Sequence[int]) -> None:
        """Start to read a share. Drop the one being read."""
        self.stop()
        if indices:
            self._indices = tuple(indices)
            self._task = asyncio.ensure_future(self._read(self._indices))

    async def share(self, indices: Sequence[int]) -> Sequences:
        """Return the sequences int64 [n, seq_len], or with labels [n, 2, seq_len]. Raises
        DataError.
        """
        if self._task is None or self._indices != tuple(indices):
            self.begin(indices)
        assert self._task is not None
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_retrieve_exception)
            self._task = None

    async def _read(self, indices: Sequence[int]) -> Sequences:
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        warned = False
        while True:
            try:
                return await self._worker(lambda: self._source.read(indices))
            except SourceUnavailable as error:
                if not warned:
                    message = f"{error.message}; this member continues when it is available again"
                    self._ports.events.emit(event_types.Warning(message=message, until="trained"))
                warned = True
            await self._ports.clock.sleep(pauses.next())


def _retrieve_exception(task: asyncio.Task[Sequences]) -> None:
    """Retrieve the outcome of an abandoned share."""
    if not task.cancelled():
        task.exception()


class Training:
    """Trains one member's shares of one epoch.

    Measures the optimizer every `stats_steps` steps; 0 disables it.
    """

    def __init__(
        self,
        ports: Ports,
        compute: Worker,
        reading: Reading,
        epoch: Epoch,
        time: Throughput,
        *,
        stats_steps: int,
        divergence: Divergence,
        delay: float,
    ) -> None:
        """`delay`: seconds to wait instead of training each share, 0 to train."""
        self._delay = delay
        self._divergence = divergence
        self._ports = ports
        self._compute = compute
        self._reading = reading
        self._epoch = epoch
        self._time = time
        self._stats_steps = stats_steps
        self._replica = epoch.start.replica

    async def train(self, plan: RoundPlan, *, travelling: bool) -> Trained | None:
        """Train our share. Return None without a share, if it is too late, or if a gradient is not
        finite.

        `travelling`: this member's last result is not in the replica yet. Raises DataError,
        Diverged.
        """
        indices = self._epoch.share_of(plan)
        if not indices:
            return None
        lr = self._epoch.learning_rate(plan.header.step)
        ahead = self._epoch.learning_rate(plan.header.step - 1)
        measured = bool(every := self._stats_steps) and plan.header.step % every == 0
        cancelled = threading.Event()
        started = self._ports.clock.monotonic()
        watch = asyncio.ensure_future(self._cancel_when_late(plan, cancelled))
        try:
            share = await first_of(self._reading.share(indices), self._late(plan))
            if self._delay:
                await first_of(self._ports.clock.sleep(self._delay), self._late(plan))
            sequences = await self._compute(lambda: torch.from_numpy(share))
            dummy_seed = indices[0] if self._delay else None
            trained = await self._compute(
                lambda: self._replica.train(
                    sequences, lr, ahead, cancelled, measured, travelling, dummy_seed
                )
            )
        except Cancelled:
            self._ports.events.emit(
                event_types.Warning(
                    message=f"skipped round {plan.header.height}: too slow, the run moved on"
                )
            )
            self._took(len(indices), started, done=False)
            return None
        except NonFiniteGradient as error:
            self._ports.events.emit(
                event_types.Warning(message=f"this member skips step {plan.header.step}: {error}")
            )
            self._divergence.not_finite(plan.header.step, error.message)
            return None
        finally:
            watch.cancel()
            # if this task was cancelled, the worker thread stops at its next micro-batch
            cancelled.set()
        for message in self._replica.news():
            self._ports.events.emit(event_types.Warning(message=message))
        self._divergence.finite()
        self._took(len(indices), started, done=True)
        return trained

    def _took(self, sequences: int, started: float, *, done: bool) -> None:
        """Record how long a share took, unless the process stalled during it.

        A stall could lower the weight so far that this member gets no share. Then it could never
        show its true speed.
        """
        if not self._ports.stall_detector.held_up_since(started):
            self._time.took(sequences, self._ports.clock.monotonic() - started, done=done)

    async def _late(self, plan: RoundPlan) -> NoReturn:
        """Raise Cancelled once the round that attests the result has closed: it is useless then."""
        latest = self._epoch.rules.attesting_round(plan.header.height)
        await self._ports.feed.until(
            lambda run: (
                run.epoch != plan.epoch or not run.state.training or run.current.height > latest
            )
        )
        raise Cancelled

    async def _cancel_when_late(self, plan: RoundPlan, cancelled: threading.Event) -> None:
        with contextlib.suppress(Cancelled):
            await self._late(plan)
        cancelled.set()
