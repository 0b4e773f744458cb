"""Keep the newest known state of a run, and wake the readers that wait for the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from aftermath.chain.clock import ChainClock
from aftermath.coordinator.errors import CoordinatorError
from aftermath.rules.run import Run

OUTAGE_SECONDS = 4.0
"""Seconds without news of the run that count as an outage. A poll of a working node takes less."""


class NewestRun:
    """Keeps the state with the highest `seq`, and wakes its readers when there is a newer one."""

    def __init__(self) -> None:
        self.slot = 0
        """The highest slot at which the run was read or pushed. Later reads ask for this slot or a
        later one.
        """
        self.back = float("-inf")
        """Time on the event loop's clock at which the run was read again after an outage."""
        self.clock = ChainClock(lambda: asyncio.get_running_loop().time())
        self._run: Run | None = None
        self._heard = 0.0
        self._ended: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def known(self) -> Run | None:
        """The newest state, None before the first one."""
        return self._run

    @property
    def run(self) -> Run:
        """The newest state. Raises CoordinatorError before the first one."""
        if self._run is None:
            raise CoordinatorError("the run has not been read yet")
        return self._run

    @property
    def silent(self) -> float:
        """Seconds since the run was last read or pushed."""
        return asyncio.get_running_loop().time() - self._heard

    def take(self, run: Run, slot: int) -> None:
        """Keep a state that was read or pushed, if it is newer."""
        previous = self._run
        if previous is not None and self.silent > OUTAGE_SECONDS:
            self.back = asyncio.get_running_loop().time()
        self._heard = asyncio.get_running_loop().time()
        self.slot = max(self.slot, slot)
        if previous is not None and run.seq <= previous.seq:
            return
        if previous is not None and run.state_started_at > previous.state_started_at:
            self.clock.observe(run.state_started_at)
        self._run = run
        self._wake()

    def end(self, error: BaseException) -> None:
        """Have `updates` raise this error after the newest state."""
        self._ended = error
        self._wake()

    async def updates(self) -> AsyncIterator[Run]:
        """Yield the newest state at once, then after every change; a slow reader misses the states
        in between.
        """
        last_yielded: Run | None = None
        while True:
            changed = self._changed
            if self.run is not last_yielded:
                last_yielded = self.run
                yield last_yielded
            elif self._ended is not None:
                raise self._ended
            else:
                await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
