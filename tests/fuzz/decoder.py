"""A decoder of bytes from outside, as the fuzz tests see it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Decode = Callable[[bytes], object]


@dataclass(frozen=True)
class Decoder:
    """A decoder under test. `prepare` returns valid messages and the function to call, which may
    raise only `errors`.
    """

    name: str
    prepare: Callable[[], tuple[list[bytes], Decode]]
    errors: tuple[type[Exception], ...] = ()


def through_file(name: str, read: Callable[[Path], object]) -> Decode:
    """Return a decoder that writes the bytes to a file and reads it."""
    path = folder() / name

    def decode(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return decode


@cache
def folder() -> Path:
    """Make a directory for this process, in memory if possible. It is deleted when the process
    ends.
    """
    memory = Path("/dev/shm")
    directory = Path(
        tempfile.mkdtemp(prefix="aftermath-fuzz-", dir=memory if memory.is_dir() else None)
    )
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def now(work: Coroutine[Any, Any, object]) -> object:
    """Return the result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")
