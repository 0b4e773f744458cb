"""What Ctrl-C, or a plain `kill`, does while a command does something that it must not break off anywhere."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls this, and a second does what it would have done (KeyboardInterrupt, the end).
    Nothing changes where somebody else decides already what a signal does, or it is ignored.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = {number: before for number, before in usual.items() if signal.getsignal(number) is before}

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
