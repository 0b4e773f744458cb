"""What Ctrl-C does while a command does something that it must not break off anywhere."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_interrupt(told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C calls this, and a second raises KeyboardInterrupt. Nothing changes where somebody else decides
    already what an interrupt does, or it is ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        told()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
