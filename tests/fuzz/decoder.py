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
    """`prepare` gives real messages to start from and the call; `errors` are all that may
    leave it.
    """

    name: str
    prepare: Callable[[], tuple[list[bytes], Decode]]
    errors: tuple[type[Exception], ...] = ()


def through_file(name: str, read: Callable[[Path], object]) -> Decode:
    """The decoder of a file: the bytes are written to a file of this name first."""
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
    made = Path(tempfile.mkdtemp(prefix="aftermath-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def now(work: Coroutine[Any, Any, object]) -> object:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")
