"""Calls made at once of which none outlives the others: when one fails, or the caller is cancelled, all end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def both(first: Coroutine[Any, Any, A], second: Coroutine[Any, Any, B]) -> tuple[A, B]:
    """The results of the two. Raises the first error, when the other one has ended too."""
    one, two = asyncio.ensure_future(first), asyncio.ensure_future(second)
    await _finish((one, two))
    return one.result(), two.result()


async def every(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait for all. Raises the first error, when all others have ended too."""
    await _finish([asyncio.ensure_future(one) for one in work])


async def _finish(tasks: Iterable[asyncio.Future[Any]]) -> None:
    # Not a TaskGroup: callers want the error itself and not a group of one.
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
