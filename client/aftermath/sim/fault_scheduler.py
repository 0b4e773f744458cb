"""Schedule faults just before and just after state changes of the run, where bugs are likeliest.

State changes are changes of the run's state, of the attested hashes and of the checkpoint on chain.
Changes at a deadline are predictable, so faults can precede them. Round changes are frequent, so
epoch changes have a higher weight.
"""

from __future__ import annotations

import asyncio
import random

from aftermath.base.concurrency import Pulse, cancel
from aftermath.rules.deadlines import next_deadline
from aftermath.rules.state import RunState
from aftermath.sim.faults import Fault, Faults
from aftermath.sim.sim_node import START
from aftermath.sim.simulation import SimulatedRun

_AT_ONCE = 3  # faults
_MINOR = 0.15  # weight of a round change, relative to an epoch change

RunPosition = tuple[RunState, int, int, int]


class FaultScheduler:
    """Causes the faults of one seed until the storm ends."""

    def __init__(self, sim: SimulatedRun, rng: random.Random, eager: float) -> None:
        self._sim = sim
        self._rng = rng
        self._eager = eager
        self._major = Pulse()
        self._minor = Pulse()
        self._position = self._run_position()
        self._height = -1
        self._under_way: dict[asyncio.Task[None], None] = {}
        self.faults = Faults(sim, rng, self._wait_for_changes)
        sim.chain.observers.append(self._look)

    def _run_position(self) -> RunPosition:
        run = self._sim.run
        state = RunState.ROUND_TRAIN if run.state.training else run.state
        return state, run.levels_attested, self._sim.model.checkpoint_step, run.draining

    def _look(self) -> None:
        """Check after every transaction whether the state changed."""
        run = self._sim.run
        position = self._run_position()
        if position != self._position:
            self._position = position
            self._major.fire()
        if (height := run.current.height) != self._height or run.state is RunState.ROUND_WITNESS:
            self._height = height
            self._minor.fire()

    async def _wait_for_changes(self, count: int | None) -> None:
        """Wait for `count` state changes. None waits for the end of the current or next warm-up."""
        if count is None:
            while self._position[0] is not RunState.WARMUP:
                await self._major.wait()
            count = 1
        for _ in range(count):
            state = self._position[0]
            while self._position[0] is state:
                await self._major.wait()

    async def storm(self, seconds: float) -> None:
        """Cause faults until virtual second `seconds`, then undo all of them."""
        hunts = [
            asyncio.ensure_future(hunt)
            for hunt in (self._after_major(), self._after_minor(), self._before_deadlines())
        ]
        try:
            await asyncio.sleep(max(0.0, seconds - self._sim.now))
        finally:
            tasks = [*hunts, *self._under_way]
            await cancel(tasks)
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        self.faults.calm()

    async def _after_major(self) -> None:
        while True:
            await self._major.wait()
            self._maybe(self._eager, self._rng.uniform(0, 2) if self._rng.random() < 0.5 else 0.0)

    async def _after_minor(self) -> None:
        while True:
            await self._minor.wait()
            self._maybe(self._eager * _MINOR, self._rng.uniform(0, 2))

    async def _before_deadlines(self) -> None:
        """Cause faults just before a deadline changes the state."""
        while True:
            run = self._sim.run
            deadline = next_deadline(run, self._sim.members)
            wait = (
                1.0
                if deadline is None
                else deadline - START - self._sim.now - self._rng.uniform(0, 1)
            )
            await asyncio.sleep(max(wait, 0.5))
            if deadline is not None and self._sim.run.seq == run.seq:
                self._maybe(self._eager * (_MINOR if run.state.training else 1), 0.0)
                await asyncio.sleep(1)

    def _maybe(self, chance: float, after: float) -> None:
        """Draw whether to cause a fault, and which one."""
        drawn = self._rng.random()
        fault = self.faults.choose(self._position[0])
        if drawn < chance and len(self._under_way) < _AT_ONCE:
            self._start(fault, after)

    def _start(self, fault: Fault, after: float) -> None:
        async def strike() -> None:
            await asyncio.sleep(after)
            await fault()

        task = asyncio.ensure_future(strike())
        self._under_way[task] = None
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._under_way.pop(task, None)
