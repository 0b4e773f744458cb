"""Spare time: slow work on its own thread that pauses while this member's round needs the machine.

On a CPU the work pauses between micro-batches. A GPU has no memory for two shares, so a new round
cancels the work. It restarts from the beginning in the next spare time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from aftermath.base.concurrency import Worker
from aftermath.replica.replica import Cancelled

T = TypeVar("T")
_POLL = 0.5  # seconds until a paused thread notices that its work was cancelled


class SpareTime:
    """Runs pieces of work, one at a time, between a member's shares."""

    def __init__(self, worker: Worker, *, pauses: bool) -> None:
        """`pauses`: whether work pauses in a new round instead of being cancelled."""
        self._worker = worker
        self._pauses = pauses
        self._begun = asyncio.Event()
        self._free = threading.Event()
        self._running: set[_Interrupt] = set()

    def begin(self) -> None:
        """Begin spare time, because this member's part of the round is done."""
        self._begun.set()
        self._free.set()

    def end(self) -> None:
        """End spare time, because a round begins."""
        self._begun.clear()
        self._free.clear()
        if not self._pauses:
            for interrupt in self._running:
                interrupt.set()

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """Return what `work` returns, in spare time. Its event tells it to raise Cancelled."""
        while True:
            await self._begun.wait()
            interrupt = _Interrupt(self._free)
            self._running.add(interrupt)
            try:
                return await self._worker(lambda now=interrupt: work(now))  # type: ignore[misc]
            except Cancelled:
                continue
            finally:
                interrupt.set()  # if this task was cancelled, the thread stops soon
                self._running.discard(interrupt)


class _Interrupt(threading.Event):
    """An event that waits for spare time before it answers, except on the event loop's thread."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__()
        self._spare = free
        self._loop_thread = threading.get_ident()

    def is_set(self) -> bool:
        if threading.get_ident() != self._loop_thread:
            while not super().is_set() and not self._spare.wait(_POLL):
                pass
        return super().is_set()
