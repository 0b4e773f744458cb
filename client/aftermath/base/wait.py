"""Waiting for several things at once, the first or all of them, without leaving tasks behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
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
        await cancel(tasks)


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """The results of the two. Raises the first error, when the other one has ended too."""
    one, two = asyncio.ensure_future(first), asyncio.ensure_future(second)
    await _finish((one, two))
    return one.result(), two.result()


async def every(work: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait for all. Raises the first error, when all others have ended too."""
    await _finish([asyncio.ensure_future(one) for one in work])


async def _finish(tasks: Collection[asyncio.Future[Any]]) -> None:
    # Not a TaskGroup: callers want the error itself and not a group of one.
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel(tasks)


async def cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until all have ended, however; those that have already stay as they are."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


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
