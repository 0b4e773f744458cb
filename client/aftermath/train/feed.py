"""The newest state of the run, shared by all tasks of a member.

One task pours the chain's updates in; any number of tasks wait for a state they care about. States only move forward
in `seq`; a waiter sees the newest one, never a queue, so nobody can lag behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aftermath.run.accounts import Run
from aftermath.train.ports import Chain


class RunFeed:
    """Holds the newest Run and wakes those who wait for one."""

    def __init__(self, first: Run) -> None:
        self._run = first
        self._changed = asyncio.Condition()

    @property
    def run(self) -> Run:
        return self._run

    async def put(self, run: Run) -> None:
        """Take a state in, unless it is older than the one held."""
        async with self._changed:
            if run.seq > self._run.seq:
                self._run = run
                self._changed.notify_all()

    async def follow(self, chain: Chain) -> None:
        """Pour the chain's updates in, for ever."""
        async for run in chain.updates():
            await self.put(run)

    async def until(self, wanted: Callable[[Run], bool]) -> Run:
        """The newest state, once `wanted` holds for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: wanted(self._run))
            return self._run

    async def after(self, seq: int) -> Run:
        """The newest state with a `seq` above the given one."""
        return await self.until(lambda run: run.seq > seq)
