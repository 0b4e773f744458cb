"""Threads for slow synchronous work: one function at a time, in the order asked, away from the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Worker(Protocol):
    """Runs a synchronous function away from the event loop: one at a time, in the order asked."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]: ...


class ThreadWorker:
    """One daemon thread, so that a long computation never keeps the process from ending."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def __call__(self, function: Callable[[], T], /) -> T:
        """Run `function` on the thread and return its result; a job cancelled before it began is skipped."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((future, function))
        return await future

    def _work(self) -> None:
        while True:
            future, function = self._jobs.get()
            if future.cancelled():
                continue
            result: Any = None
            error: BaseException | None = None
            try:
                result = function()
            except StopIteration as caught:  # a future does not take it
                error = RuntimeError(f"a job raised {caught!r}")
            except BaseException as caught:
                error = caught
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: the process is ending
            del future, function, result, error  # what a job held is freed when it is done, not when the next one comes


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
