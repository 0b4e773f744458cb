"""Files that one process holds at a time, and the one place that knows how the system does that.

Decided: an advisory lock (flock), which the kernel takes back when the process ends, however it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def hold(path: Path) -> IO[str]:
    """Lock a file of this user, made if need be, until it is closed.

    Raises BlockingIOError if another process holds it, another OSError if it cannot be opened.
    """
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        file.close()
        raise
    return file


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process is in the block with this directory; where the file system knows no locks, go on."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
