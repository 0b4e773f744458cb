"""The newest view of the run, shared by all tasks of a member.

One task pours the coordinator's views in; any number of tasks wait for a state they care about. Views only move forward
in `seq`; a waiter sees the newest one, never a queue, so nobody can lag behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aftermath.coordinator.ports import Coordinator
from aftermath.coordinator.view import View
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run


class RunFeed:
    """Holds the newest View and wakes those who wait for one."""

    def __init__(self, first: View) -> None:
        self.view = first
        self._changed = asyncio.Condition()

    @property
    def run(self) -> Run:
        """The newest state of the run."""
        return self.view.run

    @property
    def members(self) -> Members:
        """Who is in the run, as of its newest state."""
        return self.view.members

    @property
    def model(self) -> Model:
        """What the run trains, as of its newest state."""
        return self.view.model

    async def put(self, view: View) -> None:
        """Take a view in, unless it is older than the one held."""
        async with self._changed:
            if view.run.seq > self.view.run.seq:
                self.view = view
                self._changed.notify_all()

    async def follow(self, coordinator: Coordinator) -> None:
        """Pour the coordinator's views in, for ever."""
        async for view in coordinator.views():
            await self.put(view)

    async def renew(self, coordinator: Coordinator) -> View:
        """Take in what the coordinator knows by now; raises as `Coordinator.view` does."""
        await self.put(await coordinator.view())
        return self.view

    async def until(self, wanted: Callable[[Run], bool]) -> Run:
        """The newest state, once `wanted` holds for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: wanted(self.run))
            return self.run

    async def after(self, seq: int) -> Run:
        """The newest state, once it is not the one with this `seq`."""
        return await self.until(lambda run: run.seq != seq)
