"""Ctrl-C and SIGTERM: the first cancels the work and starts a countdown, a third ends it.

The second changes nothing, because people press Ctrl-C twice; it never cancels the departure. A
first Ctrl-C may be answered with a question, and then the next one counts as the first. One time
limit covers leaving the run and closing, because each may hang when the network does.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from aftermath.base.signals import heard

EXIT_SECONDS = 1.7  # of the two that are promised; the rest is for the process to end
CLOSE_SECONDS = 0.4  # of these, for closing connections


class Interrupts:
    """What signals do to one piece of work."""

    def __init__(self, told: Callable[[signal.Signals], float | None] = lambda _: 0.0) -> None:
        """`told` is called at the first signal. It returns the seconds that the work may take to
        save something before it leaves, or None if the signal is to be ignored because the user has
        to confirm it with another one.
        """
        self._told = told
        self._work: asyncio.Future[None] | None = None
        self._signals = 0
        self._end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it is done, or until time is up after a signal; raises what it raised,
        if it did in time.

        `work` calls `leaving` when it begins to clean up.
        """
        task = self._work = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        try:
            with heard(self._signalled):
                await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            over.cancel()
            task.cancel()

    def leaving(self) -> float:
        """Say that the work is over: a signal does not cancel what follows. The seconds that
        leaving may take.
        """
        self._work = None
        end = self._end or asyncio.get_running_loop().time() + EXIT_SECONDS
        return end - CLOSE_SECONDS - asyncio.get_running_loop().time()

    def saved(self) -> None:
        """Say that everything is saved: what is left of that time is not used up."""
        if self._signals:
            self._ends_in(EXIT_SECONDS)

    def wait_for_another(self) -> None:
        """Let the work continue for as long as it takes: the next signal counts as the first."""
        self._signals = 0
        self._end = 0.0
        if self._timer is not None:
            self._timer.cancel()

    def _ends_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._end = loop.time() + seconds
        self._timer = loop.call_at(self._end, self._over.set)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._signals:
            seconds = self._told(number)
            if seconds is None:
                return
            self._ends_in(EXIT_SECONDS + seconds)
        self._signals += 1
        if self._signals == 1:
            if self._work is not None:
                self._work.cancel()
        elif self._signals > 2:
            self._over.set()
