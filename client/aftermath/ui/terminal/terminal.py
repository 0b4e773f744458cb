"""The terminal as the system has it: whose it is, its modes, and what a process that draws on it does not hear.

Decided: it is Unix's, and the one file of the screen that is. Elsewhere no terminal is ever ours, so that lines are
printed, and nothing else of this is called.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

if sys.platform != "win32":
    import termios


def is_ours(descriptor: int) -> bool:
    """Whether this process may draw on it, and read keys from it. Raises OSError where there is none."""
    if sys.platform == "win32":
        return False
    return os.tcgetpgrp(descriptor) == os.getpgrp()


def modes(descriptor: int) -> Any:
    """How it takes keys now."""
    return termios.tcgetattr(descriptor)


def put_back(descriptor: int, before: Any) -> None:
    """Have it take keys as `modes` found it. Raises OSError."""
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)
    except termios.error as error:
        raise OSError(*error.args) from error


@contextmanager
def unheard() -> Iterator[None]:
    """A process that is started meanwhile is deaf to Ctrl-C and to its terminal's end.

    Before it reads keys, Ctrl-C is for its parent only; and if that one dies, it must live long enough to put
    the terminal back, which is not its own any more then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTTOU})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
