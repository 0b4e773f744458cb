"""Ctrl-C and a plain `kill`, as an event loop hears of them, and the one place that knows how the system tells it.

Decided: where a loop cannot be told by the system (on Windows), Python's own handlers wake it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def last_words(said: Callable[[], None]) -> Iterator[None]:
    """A SIGTERM meanwhile ends the process as ever, at once, but calls this before, where a loop can be told of it."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        said()
        loop.remove_signal_handler(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    try:
        loop.add_signal_handler(signal.SIGTERM, end)
    except NotImplementedError:
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def heard(told: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `told` on the running loop with every Ctrl-C and SIGTERM, which then do nothing else."""
    loop = asyncio.get_running_loop()
    with ExitStack() as undone:
        for number in ENDING:
            try:
                loop.add_signal_handler(number, told, number)
                undone.callback(loop.remove_signal_handler, number)
            except NotImplementedError:
                before = signal.signal(number, lambda got, _: loop.call_soon_threadsafe(told, signal.Signals(got)))
                undone.callback(signal.signal, number, before)
        yield
