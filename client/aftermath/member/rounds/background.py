"""Background tasks of a member's rounds. A failure costs that task alone and is reported."""

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
        duty = asyncio.ensure_future(work)
        self._running.add(duty)
        duty.add_done_callback(self._finished)

    async def stop(self) -> None:
        """Cancel the remaining tasks, and wait until all have ended."""
        await cancel(self._running)

    def _finished(self, duty: asyncio.Task[None]) -> None:
        self._running.discard(duty)
        if not duty.cancelled() and (error := duty.exception()) is not None:
            self._events.emit(event_types.Warning(message=f"a duty of this round failed: {error}"))
