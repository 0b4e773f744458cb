"""Terminal access on Unix: ownership, modes, and signals to ignore.

Other files of the screen work on every system. Where this one does not, no terminal counts as ours
and lines are printed.
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
    """Return whether this process may use the terminal. Raises OSError if there is none."""
    if sys.platform == "win32":
        return False
    return os.tcgetpgrp(descriptor) == os.getpgrp()


def modes(descriptor: int) -> Any:
    """Return the terminal's modes."""
    return termios.tcgetattr(descriptor)


def restore_modes(descriptor: int, attributes: Any) -> None:
    """Restore the modes that `modes` returned. Raises OSError."""
    try:
        termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    except termios.error as error:
        raise OSError(*error.args) from error


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Make processes that start in this block ignore Ctrl-C and the end of their terminal.

    Until the screen reads keys, Ctrl-C is meant only for its parent. If the parent dies, the screen
    must live long enough to restore the terminal.
    """
    old_mask = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGTTOU}
    )
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
