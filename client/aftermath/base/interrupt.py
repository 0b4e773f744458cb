"""What Ctrl-C, or a plain `kill`, does in an event loop, and while a command does something that it must not break off
anywhere.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aftermath.base import quiet


def hear_ignored_interrupts() -> None:
    """Let SIGINT end this process. A script that starts it with `&` makes it ignore SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, quiet.told)


@contextmanager
def looped() -> Iterator[None]:
    """Ctrl-C as an event loop takes it over: asyncio does so only from Python's own handler."""
    before = signal.getsignal(signal.SIGINT)
    if before is not quiet.told:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def on_interrupt(told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls this, and a second does what it would have done (KeyboardInterrupt, the end).
    Nothing changes if a handler is installed already, or the signal is ignored.
    """
    usual = {signal.SIGINT: (signal.default_int_handler, quiet.told), signal.SIGTERM: (signal.SIG_DFL,)}
    now = {number: signal.getsignal(number) for number in usual}
    ours = {number: before for number, before in now.items() if before in usual[number]}

    def first(*_: object) -> None:
        put_back()
        told()

    def put_back() -> None:
        for number, before in ours.items():
            signal.signal(number, before)

    for number in ours:
        signal.signal(number, first)
    try:
        yield
    finally:
        put_back()
