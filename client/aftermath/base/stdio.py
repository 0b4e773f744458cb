"""Set up standard output and error: complete writes, and the verbosity of -q and -v."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import sys
from contextvars import ContextVar
from enum import StrEnum


def write_whole_output() -> None:
    """Buffer an unbuffered standard output, so that partial writes are repeated.

    With PYTHONUNBUFFERED, which container images set, Python drops the rest of a partial write. On
    a nearly full disk that cut a document, and the command still exited with 0.
    """
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    if isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.RawIOBase):
        buffered = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=True)


def one_output() -> bool:
    """Return whether stdout and stderr are one terminal, pipe or file, so that a reader sees
    both.
    """
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or not a real file
        return False


def drop_closed_terminal() -> None:
    """Discard what is printed from now on, if the terminal that would show it is closed.

    Writing to it fails, and a process that still saves its work must not end at such a line.
    """
    for number in (1, 2):
        with contextlib.suppress(OSError):  # the stream is closed
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, number)
                os.close(null)


class Verbosity(StrEnum):
    """How much to print: only warnings and errors, also progress, or everything."""

    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


VERBOSITY: ContextVar[Verbosity] = ContextVar(
    "how much the running command prints", default=Verbosity.INFO
)


def is_quiet() -> bool:
    """Return whether only warnings and errors are printed."""
    return VERBOSITY.get() is Verbosity.WARNING


def say(sentence: str) -> None:
    """Print a sentence of our own about progress on stderr, unless the command is quiet."""
    if not is_quiet():
        print(sentence, file=sys.stderr, flush=True)
