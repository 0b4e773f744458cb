"""Write standard output whole or fail, and tell whether it is the same file as standard error.

With PYTHONUNBUFFERED, which container images set, Python's standard output is unbuffered and drops what the system did
not take of a write: a disk that is nearly full cut a document, and the command still ended with 0.
"""

from __future__ import annotations

import io
import os
import sys


def write_whole_output() -> None:
    """Put a buffer, which repeats partial writes, before an unbuffered standard output."""
    stream = sys.stdout
    raw = getattr(stream, "buffer", None)
    if isinstance(stream, io.TextIOWrapper) and isinstance(raw, io.RawIOBase):
        buffered = io.BufferedWriter(raw)
        sys.stdout = io.TextIOWrapper(buffered, stream.encoding, stream.errors, line_buffering=True)


def one_output() -> bool:
    """Return whether stdout and stderr are one terminal, pipe or file, so that a reader sees both."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # closed, or no file of the system
        return False
