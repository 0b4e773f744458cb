"""Virtual time: an event loop whose clock jumps to the next timer when it has nothing else to do.

Hours of timers pass in milliseconds, and two runs of the same program see the same times in the
same order. Do not use threads with it: the loop cannot know that a thread is still working.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.SelectSelector):
    """A selector that never waits: the requested time passes at once."""

    def __init__(self, pass_time: Callable[[float], None]) -> None:
        super().__init__()
        self._pass_time = pass_time

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError(
                    "everything waits for something that can never happen (deadlock in virtual time)"
                )
            self._pass_time(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual seconds, starting at 0."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_JumpingSelector(self._pass))

    def time(self) -> float:
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += max(0.0, seconds)


def hold_up(seconds: float) -> None:
    """Let time pass without running anything on the virtual loop, as if the process was stopped."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop._pass(seconds)


class VirtualClock:
    """The `coordinator.ports.Clock` of the running virtual loop."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class InlineWorker:
    """Runs slow work at once, and lets its virtual duration pass."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def __call__(self, function: Callable[[], T], /) -> T:
        async with self._turn:
            await asyncio.sleep(self._seconds)
            return function()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
