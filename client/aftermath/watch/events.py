"""Events: the one stream every view of a member is drawn from.

Choices:
- an event is a flat JSON object with `t` (seconds of the member's clock), `kind` and plain fields; bytes travel as hex;
- the first event of a process is `started`: which run, wallet, client version and tier all that follows is about;
- the date enters where an event leaves us, in a sink: nothing that decides knows it, and virtual time stays exact;
- a `warning` may name in `until` the kind of event that makes it outdated;
- a sink that fails (full disk, closed pipe) is dropped with one warning and never stops training, even where standard
  error, which the warning goes to, fails too: often both are one file;
- no sink blocks: files are line-buffered, the console prints a line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol, TextIO

Event = dict[str, Any]
Wall = Callable[[], datetime]
"""The date and time of the machine, with its time zone."""


class Sink(Protocol):
    """Receives events one at a time; may raise OSError, after which it is not called again."""

    def __call__(self, event: Event) -> None: ...


class Events:
    """Stamps events and hands them to its sinks."""

    def __init__(self, clock: Callable[[], float], sinks: Sequence[Sink]) -> None:
        self._clock = clock
        self._sinks = list(sinks)

    def emit(self, kind: str, **fields: Any) -> None:
        """Send one event; `fields` are JSON values, bytes (sent as hex) or floats (non-finite ones sent as null)."""
        event: Event = {"t": round(self._clock(), 4), "kind": kind}
        event.update((name, plain(value)) for name, value in fields.items())
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except OSError as error:
                self._sinks.remove(sink)
                with contextlib.suppress(OSError):
                    print(f"warning: a log could not be written and is closed: {error}", file=sys.stderr, flush=True)


class LogWarnings(logging.Handler):
    """Makes events of what modules warn of in their loggers, so that it appears where all else does, in one line."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """One `warning` event; of an exception its type and text."""
        error = record.exc_info[1] if record.exc_info else None
        why = f": {type(error).__name__}: {error}" if error else ""
        self._events.emit("warning", message=f"{record.getMessage()}{why}")


def plain(value: Any) -> Any:
    """The JSON form of a field."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value


class JsonLines:
    """Appends events to a file or stream as JSON lines, each with the date at which it was written (`at`)."""

    def __init__(self, target: Path | TextIO, wall: Wall) -> None:
        self._wall, self._path = wall, target if isinstance(target, Path) else None
        if isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
            torn = _torn(target)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._stream: TextIO = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")
            if torn:
                self._stream.write("\n")
        else:
            self._stream = target

    def __call__(self, event: Event) -> None:
        """Raises OSError, with the file's name, if it cannot be written."""
        dated = {"at": self._wall().isoformat(timespec="milliseconds"), **event}
        try:
            self._stream.write(json.dumps(dated, separators=(",", ":")) + "\n")
            self._stream.flush()
        except OSError as error:
            if self._path is not None:
                error.filename = str(self._path)
            raise


def _torn(path: Path) -> bool:
    """Whether a file ends in half a line, as a disk that was full leaves it: what is added begins a line of its own."""
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
