"""Read a run's status once or after every change, without a wallet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from aftermath.chain.addresses import run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.newest_run import OUTAGE_SECONDS
from aftermath.chain.run_watcher import RunWatcher
from aftermath.coordinator.ports import View
from aftermath.events.status import RunStatus, status_of
from aftermath.rules.run import STORED_ROUNDS, Run


class RunFollower:
    """Follows one run on a cluster.

    The Run account is pushed. Model and Members are read again only when the run's counters
    changed.
    """

    def __init__(self, coordinator: CoordinatorClient, run_id: str) -> None:
        self._coordinator = coordinator
        self._run_id = run_id
        program = coordinator.program_id
        self._watcher = RunWatcher(coordinator.pool, run_addresses(program, run_id).run, program)
        self._view: View | None = None

    async def now(self) -> RunStatus:
        """Read and return the status. Raises NoSuchRun."""
        await self._read()
        await self._watcher.refresh()  # also reads the chain's clock
        return self.standing()

    @property
    def newest_step(self) -> int:
        """The highest step that anyone can have reported by now."""
        return self._watcher.latest.step + STORED_ROUNDS

    @property
    def view(self) -> View:
        """The accounts as last read."""
        assert self._view is not None
        return self._view

    @property
    def run(self) -> Run:
        """The run as last read."""
        return self.view.run

    @property
    def silent(self) -> float:
        """Seconds since the last news of the run."""
        return self._watcher.silent

    def standing(self) -> RunStatus:
        """Return the status from the last read accounts, at the chain's current time."""
        view = self.view
        silent = self._watcher.silent
        return status_of(
            view.run,
            view.model,
            view.members,
            self._watcher.clock.now(),
            silent=round(silent) if silent > OUTAGE_SECONDS else 0,
            has_tick=self._coordinator.pool.has_tick,
        )

    @asynccontextmanager
    async def following(self) -> AsyncIterator[AsyncIterator[RunStatus]]:
        """Yield the status now and after every change. Raises as `now`, and NoSuchRun when the run
        is closed.
        """
        await self._read()
        await self._watcher.start()
        try:
            yield self._standings()
        finally:
            await self._watcher.close()

    async def _standings(self) -> AsyncIterator[RunStatus]:
        async for run in self._watcher.updates():
            view = self._view
            if view is not None and (view.run.model_seq, view.run.members_seq) == (
                run.model_seq,
                run.members_seq,
            ):
                self._view = replace(view, run=run)
            else:
                await self._read()
            yield self.standing()

    async def _read(self) -> None:
        run, model, members = await self._coordinator.snapshot(self._run_id, any_spec=True)
        self._view = View(run, members, model)
