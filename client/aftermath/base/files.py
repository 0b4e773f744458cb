"""Atomic file replacement: a file is complete on disk or not there at all.

New contents go to a hidden file with the suffix `.partial` in the same directory, are forced to
disk, and renamed. After an error the old file is unchanged. A killed process leaves its partial
file, which the next write of that name replaces.
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
"""A full disk, a used-up quota, and a file as large as the system lets this process write."""
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def fix_of(error: OSError, what: str = "file") -> str:
    """Return what helps after a failed write of a file or a directory, as `what` says."""
    if error.errno in NO_ROOM:
        return f"Free some space, or name a {what} on another disk"
    if error.errno in _NOT_ALLOWED:
        return f"Name a {what} that you may write to"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"Name a {what} in a directory that exists"
    return f"Name another {what}"


def space_or(error: OSError, fix: str) -> str:
    """Return what helps after a failed write where the user does not name the place: free space, or else this fix."""
    return "Free some space on that disk" if error.errno in NO_ROOM else fix


@contextmanager
def parents_made(directory: Path) -> Iterator[None]:
    """Make a directory with its parents for the block. After an error, remove those that are new and empty."""
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
    """A stream whose bytes stand under the target's name once all of them are on disk, and nowhere after an error.

    `shared`: other processes may write the same file at the same time; the last one to finish wins.
    """
    with standing_in(target, shared=shared) as partial:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as stream:  # never open a file or link that another user put there
            yield stream


@contextmanager
def standing_in(target: Path, *, shared: bool = False) -> Iterator[Path]:
    """A name to write under: the file there takes the target's once it is on disk, and is removed after an error."""
    process = f".{os.getpid()}" if shared else ""
    partial = target.with_name(f".{target.name}{process}.partial")
    try:
        yield partial
        settle(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def settle(partial: Path, target: Path) -> None:
    """Force a file to disk and give it its name; what had the name is gone. Both are in one directory."""
    sync(partial)
    partial.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Force a file, or the names in a directory, to disk; Windows, which opens no directory, sees to names itself."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_bytes(descriptor: int) -> None:
    """Force what was written to disk, without what nobody reads it by, where the system knows the difference."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


_NAME = "aftermath"


def cache_directory(name: str) -> Path:
    """A directory for what can be made or found again: locks, data, keys of deployments under way, a validator."""
    return user_cache_path(_NAME, appauthor=False) / name


def state_directory() -> Path:
    """For reports of errors nobody expected."""
    return user_state_path(_NAME, appauthor=False)


def config_directory() -> Path:
    """For what the user has chosen once for all commands."""
    return user_config_path(_NAME, appauthor=False)
