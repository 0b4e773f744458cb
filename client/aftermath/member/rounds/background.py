"""Background tasks of a member's rounds. A failure ends only its own task and is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from aftermath.base.concurrency import cancel
from aftermath.events import event_types
from aftermath.events.stream import Events


class BackgroundTasks:
    """The background tasks of one epoch."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._finished)

    async def stop(self) -> None:
        """Cancel the remaining tasks, and wait until all have ended."""
        await cancel(self._running)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.emit(
                event_types.Warning(message=f"a background task of this round failed: {error}")
            )
