"""Replace files atomically, and locate this user's cache, state and config directories.

New contents go to a hidden `.partial` file in the same directory, are forced to disk, and renamed.
After an error the old file is unchanged. The next write of that name replaces the partial file of a
killed process.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path, user_config_path, user_state_path

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, an exhausted quota, or a file at the process's size limit."""
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def fix_of(error: OSError, what: str = "file") -> str:
    """Return the fix for a failed write of a file or a directory (`what`)."""
    if error.errno in NO_ROOM:
        return f"Free some space, or name a {what} on another disk"
    if error.errno in _NOT_ALLOWED:
        return f"Name a {what} that you may write to"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"Name a {what} in a directory that exists"
    return f"Name another {what}"


def space_or(error: OSError, fix: str) -> str:
    """Return the fix for a failed write to a path that the user did not choose: free space, or this
    fix.
    """
    return "Free some space on that disk" if error.errno in NO_ROOM else fix


@contextmanager
def parents_made(directory: Path) -> Iterator[None]:
    """Make a directory with its parents for the block. After an error, remove those that are new
    and empty.
    """
    new = list(takewhile(lambda path: not path.exists(), (directory, *directory.parents)))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):
            for path in new:
                path.rmdir()
        raise


@contextmanager
def replacing(target: Path, *, shared: bool = False) -> Iterator[BinaryIO]:
    """Yield a stream whose bytes become the target file once all are on disk. Discard them after an
    error.

    `shared`: other processes may write the same file at the same time; the last one to finish wins.
    """
    with partial_path(target, shared=shared) as partial:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as stream:  # never open a file or link that another user put there
            yield stream


@contextmanager
def partial_path(target: Path, *, shared: bool = False) -> Iterator[Path]:
    """Yield a path to write to. That file replaces the target once on disk, and is removed after an
    error.
    """
    process = f".{os.getpid()}" if shared else ""
    partial = target.with_name(f".{target.name}{process}.partial")
    try:
        yield partial
        sync_and_rename(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sync_and_rename(partial: Path, target: Path) -> None:
    """Force a file to disk and rename it over the target. Both must be in one directory."""
    sync(partial)
    partial.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Force a file, or the names in a directory, to disk. Windows cannot open directories and needs
    no such call.
    """
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_bytes(descriptor: int) -> None:
    """Force a file's contents to disk, without its timestamps where the system can tell them
    apart.
    """
    getattr(os, "fdatasync", os.fsync)(descriptor)


_NAME = "aftermath"


def cache_directory(name: str) -> Path:
    """Return a directory for data that can be recreated: locks, downloads, deployment keys, a
    validator.
    """
    return user_cache_path(_NAME, appauthor=False) / name


def state_directory() -> Path:
    """Return the directory for reports of unexpected errors."""
    return user_state_path(_NAME, appauthor=False)


def config_directory() -> Path:
    """Return the directory for choices that the user made once for all commands."""
    return user_config_path(_NAME, appauthor=False)
