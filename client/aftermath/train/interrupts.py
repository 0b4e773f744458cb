"""Handle ending signals: the first cancels the work with a timeout, the third ends at once.

The second does nothing, because people press Ctrl-C twice. If the member answers the first Ctrl-C
with a question, the next one counts as the first. One timeout covers leaving the run and closing,
because both may hang without a network.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from aftermath.base.signals import on_signals

EXIT_SECONDS = 1.7  # documented as 2 s; the process needs the rest to end
CLOSE_SECONDS = 0.4  # part of EXIT_SECONDS for closing connections


class Interrupts:
    """Cancels one coroutine at a signal, with a timeout for its cleanup."""

    def __init__(self, on_signal: Callable[[signal.Signals], float | None] = lambda _: 0.0) -> None:
        """Call `on_signal` at the first signal.

        `on_signal` returns the seconds that the work may take to save before it leaves. None
        ignores the signal, because the user has to confirm it with another one.
        """
        self._on_signal = on_signal
        self._work: asyncio.Future[None] | None = None
        self._signals = 0
        self._end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it is done, or until the timeout after a signal.

        Raises what `work` raised before the timeout. `work` calls `leaving` before its cleanup.
        """
        task = self._work = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        try:
            with on_signals(self._signalled):
                await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            over.cancel()
            task.cancel()

    def leaving(self) -> float:
        """Begin the cleanup, which signals do not cancel. Return the seconds for leaving."""
        self._work = None
        end = self._end or asyncio.get_running_loop().time() + EXIT_SECONDS
        return end - CLOSE_SECONDS - asyncio.get_running_loop().time()

    def saved(self) -> None:
        """End the time for saving after a signal. Only `EXIT_SECONDS` remain."""
        if self._signals:
            self._ends_in(EXIT_SECONDS)

    def wait_for_another(self) -> None:
        """Stop the timeout and let the work continue. The next signal counts as the first."""
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
            seconds = self._on_signal(number)
            if seconds is None:
                return
            self._ends_in(EXIT_SECONDS + seconds)
        self._signals += 1
        if self._signals == 1:
            if self._work is not None:
                self._work.cancel()
        elif self._signals > 2:
            self._over.set()
