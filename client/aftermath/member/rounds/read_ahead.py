"""The sequences of a member's share, read from the moment it is known: before results are applied, not after.

Decided
- One share is read at a time, on a thread of its own; a share that was given up is not waited for.
- While whoever serves the data is away, it is asked again, ever more rarely; the user is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aftermath.base.backoff import Backoff
from aftermath.base.worker import Worker
from aftermath.data.source import Sequences, Source, SourceAway
from aftermath.member.ports import Ports
from aftermath.watch import kinds

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before a source that is away is asked again


class Reading:
    """Reads shares ahead for one member."""

    def __init__(self, ports: Ports, worker: Worker, source: Source) -> None:
        self._ports, self._worker, self._source = ports, worker, source
        self._indices: tuple[int, ...] = ()
        self._task: asyncio.Task[Sequences] | None = None

    def begin(self, indices: Sequence[int]) -> None:
        """Start to read a share; whatever was being read before is dropped."""
        self.stop()
        if indices:
            self._indices = tuple(indices)
            self._task = asyncio.ensure_future(self._read(self._indices))

    async def share(self, indices: Sequence[int]) -> Sequences:
        """The sequences int64 [n, seq_len], or with labels [n, 2, seq_len], once they are there. Raises DataError."""
        if self._task is None or self._indices != tuple(indices):
            self.begin(indices)
        assert self._task is not None
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """Read no more."""
        if self._task is not None:
            self._task.cancel()
            self._task.add_done_callback(_heed)
            self._task = None

    async def _read(self, indices: Sequence[int]) -> Sequences:
        pauses, told = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), False
        while True:
            try:
                return await self._worker(lambda: self._source.read(indices))
            except SourceAway as error:
                if not told:
                    message = f"{error.message}; this member goes on when it can be had again"
                    self._ports.events.emit(kinds.Warning(message=message, until="trained"))
                told = True
            await self._ports.clock.sleep(pauses.next())


def _heed(task: asyncio.Task[Sequences]) -> None:
    """Take the outcome of a share that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
