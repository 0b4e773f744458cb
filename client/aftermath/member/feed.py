"""The newest view of the run, shared by all tasks of a member.

One task stores the coordinator's views, and any number of tasks wait for a state. Views only move
forward in `seq`. A waiter sees the newest view instead of a queue, so it cannot lag behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aftermath.coordinator.ports import Coordinator, View
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run


class RunFeed:
    """Holds the newest View and wakes tasks that wait for one."""

    def __init__(self, first: View) -> None:
        self.view = first
        self._changed = asyncio.Condition()

    @property
    def run(self) -> Run:
        """Return the newest state of the run."""
        return self.view.run

    @property
    def members(self) -> Members:
        """Return the members as of the newest state."""
        return self.view.members

    @property
    def model(self) -> Model:
        """Return the model as of the newest state."""
        return self.view.model

    async def put(self, view: View) -> None:
        """Store a view, unless it is older than the current one."""
        async with self._changed:
            if view.run.seq > self.view.run.seq:
                self.view = view
                self._changed.notify_all()

    async def follow(self, coordinator: Coordinator) -> None:
        """Store the coordinator's views until cancelled."""
        async for view in coordinator.views():
            await self.put(view)

    async def renew(self, coordinator: Coordinator) -> View:
        """Store and return the coordinator's current view. Raises what `Coordinator.view` does."""
        await self.put(await coordinator.view())
        return self.view

    async def until(self, condition: Callable[[Run], bool]) -> Run:
        """Return the newest state as soon as it satisfies `condition`."""
        async with self._changed:
            await self._changed.wait_for(lambda: condition(self.run))
            return self.run

    async def after(self, seq: int) -> Run:
        """Return the newest state as soon as its `seq` differs."""
        return await self.until(lambda run: run.seq != seq)
