"""Reads the sequences of a member's share as soon as it is known, before results are applied.

It reads one share at a time, on its own thread, and does not wait for an abandoned share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aftermath.base.concurrency import Worker
from aftermath.base.rate_limit import Backoff
from aftermath.data.source import Sequences, Source, SourceUnavailable
from aftermath.events import event_types
from aftermath.member.ports import Ports

_FIRST_PAUSE = 1.0  # seconds before the first retry of an unreachable source
_LONGEST_PAUSE = 30.0


class Reading:
    """Reads shares ahead for one member."""

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
