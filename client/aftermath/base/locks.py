"""Lock files across processes with `filelock`. Kernel locks end with their process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

_NAMING = ".naming.lock"


def hold(path: Path) -> contextlib.ExitStack:
    """Lock a file, creating it if needed. Closing the returned stack, on any thread, releases it.

    Raises BlockingIOError if another process holds the lock, and another OSError if the file cannot
    be opened.
    """
    lock = FileLock(path, mode=0o600, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(f"{path} is held by another process") from None
    release_stack = contextlib.ExitStack()
    release_stack.callback(lock.release)
    return release_stack


@contextlib.contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process is in the block with this directory. Without lock support,
    continue.
    """
    path = directory / _NAMING
    lock = FileLock(path, mode=0o600, thread_local=False)
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        if lock.is_locked:
            # delete it while it is locked; a process that waits for this file then makes another
            path.unlink(missing_ok=True)
        lock.release()
