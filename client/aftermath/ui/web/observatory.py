"""All observed runs: the list of runs, the followed ones, and the event files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec

from aftermath.base.concurrency import Pulse, ThreadWorker, cancel
from aftermath.base.errors import AftermathError, UsageError
from aftermath.chain.addresses import run_seed
from aftermath.chain.client import CoordinatorClient
from aftermath.events.reader import EventReader, EventRecord
from aftermath.ui.web.observed_run import ObservedRun

log = logging.getLogger(__name__)

MOST_RUNS = 32
"""Maximum number of runs that are followed at once."""
MOST_LISTED = 500
LIST_SECONDS = 5.0
_EVENT_SECONDS = 0.5
_EVENTS_AT_ONCE = 500


class Listed(msgspec.Struct, frozen=True):
    """A run in the list. `on_chain` is false if only events mention it."""

    run_id: str
    on_chain: bool
    name: str = ""
    state: str = ""
    epoch: int = 0
    step: int = 0
    total_steps: int = 0
    members: int = 0
    tiers: int = 0


class Runs(msgspec.Struct, frozen=True):
    """The list of runs as its page gets it."""

    runs: list[Listed]
    trouble: str
    more: int
    """Number of runs without room."""


class Observatory:
    """Everything that pages show. `named`: the run that is always followed.

    Other runs are followed from their first visit on. When there is no room, the run that nobody
    viewed for longest is dropped. This limits the load that strangers can cause on RPC nodes. The
    list is refreshed only while someone views it. One thread reads the files, some events at a
    time.
    """

    def __init__(
        self,
        coordinator: CoordinatorClient,
        *,
        named: str | None = None,
        events: Sequence[Path] = (),
    ) -> None:
        self.changed = Pulse()
        """Fires when the list of runs changed."""
        self.list_viewers = 0
        self._coordinator = coordinator
        self._named = named
        self._events = EventReader(events, later=True) if events else None
        self._runs: dict[str, ObservedRun] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._on_chain: list[Listed] = []
        self._trouble = ""
        self._listed = b""
        self._list_read = float("-inf")
        self._listing = asyncio.Lock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Observatory]:
        """Follow runs and read files until the block ends."""
        tasks = [asyncio.create_task(self._keep_the_list())]
        if self._events is not None:
            tasks.append(asyncio.create_task(self._read_events(self._events)))
        if self._named is not None:
            self.run(self._named)
        try:
            yield self
        finally:
            await cancel([*tasks, *self._following.values()])

    # --- runs ---

    def run(self, run_id: str) -> ObservedRun | None:
        """Return a run, and follow it from now on. None without room. Raises UsageError for an
        invalid id.
        """
        run_seed(run_id)
        run = self._runs.get(run_id) or ObservedRun(
            self._coordinator, run_id, steady=run_id == self._named
        )
        run.looked_at = time.monotonic()
        self._forget_ended()
        if run_id not in self._following:
            if len(self._following) >= MOST_RUNS and not self._make_room():
                return None
            self._following[run_id] = asyncio.create_task(run.follow())
        self._runs[run_id] = run
        return run

    def _forget_ended(self) -> None:
        for name in [name for name, task in self._following.items() if task.done()]:
            del self._following[name]
            if not self._runs[name].event_count:
                del self._runs[name]

    def _make_room(self) -> bool:
        """Stop following the run that nobody has viewed for longest."""
        idle = [
            run for name, run in self._runs.items() if name in self._following and not run.viewers
        ]
        idle = [run for run in idle if run.run_id != self._named]
        if not idle:
            return False
        left = min(idle, key=lambda run: run.looked_at)
        self._following.pop(left.run_id).cancel()
        if not left.event_count:
            del self._runs[left.run_id]
        return True

    # --- the list ---

    async def runs(self) -> bytes:
        """Return `Runs` as JSON, at most LIST_SECONDS old."""
        async with self._listing:
            if time.monotonic() - self._list_read > LIST_SECONDS:
                await self._read_list()
        return self._listed

    async def _keep_the_list(self) -> None:
        # so that a warning about a silent node appears before anyone opens the page
        await self.runs()
        while True:
            await asyncio.sleep(LIST_SECONDS)
            if self.list_viewers:
                await self.runs()

    async def _read_list(self) -> None:
        try:
            runs_found = await self._coordinator.list_runs()
            self._on_chain = [
                Listed(
                    run.run_id,
                    True,
                    model.metadata.name,
                    run.state.name.lower(),
                    run.epoch,
                    run.trained_steps,
                    run.config.total_steps,
                    members.present if members else 0,
                    model.tiers,
                )
                for run, model, members in runs_found
            ]
            self._trouble = ""
        except AftermathError as error:
            self._trouble = error.message
        except Exception:
            log.exception("the runs could not be listed")
            self._trouble = "the runs could not be listed because of an unexpected error; see the observer's log"
        self._list_read = time.monotonic()
        ids_on_chain = {one.run_id for one in self._on_chain}
        runs_from_events = [
            Listed(name, False)
            for name, run in sorted(self._runs.items())
            if run.event_count and name not in ids_on_chain
        ]
        listed = [*self._on_chain, *runs_from_events]
        packed = msgspec.json.encode(
            Runs(listed[:MOST_LISTED], self._trouble, max(0, len(listed) - MOST_LISTED))
        )
        if packed != self._listed:
            self._listed = packed
            self.changed.fire()

    # --- events ---

    async def _read_events(self, reader: EventReader) -> None:
        worker = ThreadWorker("events")
        noted: set[str] = set()
        while True:
            records = await worker(reader.read)
            while part := await worker(partial(_some, records)):
                for run in self._take(part):
                    run.taken()
            for note in reader.notes():
                if note not in noted and "half a line" not in note:
                    log.warning("%s", note)
                    noted.add(note)
            await asyncio.sleep(_EVENT_SECONDS)

    def _take(self, part: Sequence[EventRecord]) -> Iterator[ObservedRun]:
        """Pass events to their runs. Return the runs that received events."""
        touched: dict[str, ObservedRun] = {}
        for record in part:
            run = self._run_of_event(record.origin.run_id)
            if run is not None:
                run.take(record)
                touched[run.run_id] = run
        return iter(touched.values())

    def _run_of_event(self, run_id: str) -> ObservedRun | None:
        """Return the run of an event, or None if its id is invalid or there is no room."""
        if (run := self._runs.get(run_id)) is not None:
            return run
        try:
            run_seed(run_id)
        except UsageError:
            return None
        if len(self._runs) >= 2 * MOST_RUNS:
            return None
        self._runs[run_id] = ObservedRun(self._coordinator, run_id, steady=run_id == self._named)
        return self._runs[run_id]


def _some(records: Iterator[EventRecord]) -> list[EventRecord]:
    return list(islice(records, _EVENTS_AT_ONCE))
