"""Waiting for the first of several things, without leaving tasks behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def first_of(*waits: Coroutine[Any, Any, T]) -> T:
    """What the first coroutine that is done returns or raises; the others are cancelled.

    Of several that are done at once an error goes before a result, and otherwise the earlier argument wins.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        results = [task.result() for task in tasks if task.done()]
        return results[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pulse:
    """Wakes everybody who is waiting at the moment it fires; holds no state."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    def wait(self) -> Coroutine[Any, Any, Any]:
        """Await the next firing, counted from this call and not from when the coroutine first runs."""
        return self._event.wait()
