"""An event loop over real sockets whose clock jumps to the next timer while nothing is left to do.

Both ends of every connection must be in this process and on this loop: the loop waits `GRACE` real
seconds for bytes before it jumps, which is far longer than the loopback device takes. While a
thread of the executor works, it never jumps.
"""

from __future__ import annotations

import asyncio
import inspect
import selectors
import time
from collections.abc import Callable, Set
from concurrent.futures import Executor
from typing import Any

import pytest

GRACE = 0.003  # seconds


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that skips all but `GRACE` seconds of a wait."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        self.busy_threads = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= GRACE or self.busy_threads:
            return super().select(timeout)
        before = time.monotonic()
        ready = super().select(GRACE)
        if not ready:
            self.skipped += max(0.0, timeout - (time.monotonic() - before))
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` is the machine's monotonic clock plus all skipped time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return super().time() + self._jumping.skipped

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.busy_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._jumping.busy_threads -= 1


class LoopTime:
    """The running loop's time for an embedded network, so that its slots and its clock follow the
    jumps.
    """

    def __init__(self) -> None:
        self._origin = time.time() - asyncio.get_running_loop().time()

    def now(self) -> float:
        return self._origin + asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def mark_for_module_loop(name: str, obj: object, fixtures: Set[str]) -> None:
    """Run an async test that uses one of these fixtures on the loop of its file. Call this at
    collection.
    """
    is_async_test = name.startswith("test") and inspect.iscoroutinefunction(obj)
    if is_async_test and fixtures & set(inspect.signature(obj).parameters):  # type: ignore[arg-type]
        pytest.mark.asyncio(loop_scope="module")(obj)
