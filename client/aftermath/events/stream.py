"""The stream of a member's events, which every display of the member uses.

Only sinks know the date, so that no decision depends on it and virtual time stays exact. Sinks do
not block.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, runtime_checkable

import msgspec

from aftermath.base.outputs import check_file
from aftermath.events.event_types import Error, Event, Warning
from aftermath.events.printable import escaped_json

if TYPE_CHECKING:
    from aftermath.events.status import RunStatus

Wall = Callable[[], datetime]
"""The date and time of the machine, with its time zone."""


class SinkPaused(OSError):
    """Raised by a sink that could not write an event and will try again later. Reported once."""


class Sink(Protocol):
    """Receives events one at a time. After an OSError it is dropped, unless that is SinkPaused."""

    def __call__(self, event: Event, /) -> None: ...


@runtime_checkable
class StatusSink(Protocol):
    """A sink that also shows the run's status."""

    def look(self, look: Callable[[], RunStatus], /) -> None: ...


class Events:
    """Stamps events and passes them to sinks.

    A failing sink (full disk, closed pipe) is dropped with one warning and never stops training,
    even if standard error fails too. Often both are the same file.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        sinks: Sequence[Sink],
        complete: Callable[[str], str] = str,
    ) -> None:
        """`complete` adds the options of this process to the commands in a warning."""
        self._clock = clock
        self._sinks = list(sinks)
        self._complete = complete

    @property
    def looked_at(self) -> bool:
        """Whether any sink shows the run's status."""
        return any(isinstance(sink, StatusSink) for sink in self._sinks)

    def look(self, look: Callable[[], RunStatus]) -> None:
        """Give these sinks the function that reads the current status. They call it on their own
        thread.
        """
        for sink in self._sinks:
            if isinstance(sink, StatusSink):
                sink.look(look)

    def emit(self, event: Event) -> None:
        """Send one event, stamped with the current time."""
        event = msgspec.structs.replace(event, t=round(self._clock(), 4))
        if isinstance(event, Warning):
            event = msgspec.structs.replace(event, message=self._complete(event.message))
        for sink in tuple(self._sinks):
            try:
                sink(event)
            except SinkPaused as error:
                _warn(str(error))
            except OSError as error:
                with contextlib.suppress(ValueError):  # another thread's event failed too
                    self._sinks.remove(sink)
                _warn(f"closed a log that cannot be written: {_reason(error)}")


def _reason(error: OSError) -> str:
    """Return why a write failed, without the system's error number."""
    why = error.strerror or str(error)
    return f"{error.filename}: {why}" if error.filename else why


def _warn(sentence: str) -> None:
    with contextlib.suppress(OSError):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)


class LogWarnings(logging.Handler):
    """Turn warnings of our modules' loggers into events, so that they appear with all other
    events.
    """

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Emit one `warning` event, with the type and text of an exception if there is one."""
        error = record.exc_info[1] if record.exc_info else None
        why = f": {type(error).__name__}: {error}" if error else ""
        self._events.emit(Warning(message=f"{record.getMessage()}{why}"))


def plain(event: Event) -> dict[str, Any]:
    """Return an event as the flat object of its JSON."""
    flat: dict[str, Any] = msgspec.to_builtins(event, str_keys=True)
    return flat


def hexed(hashes: Mapping[int, bytes]) -> dict[int, str]:
    """Return hashes of levels as events have them."""
    return {level: digest.hex() for level, digest in hashes.items()}


def level_of(event: Event) -> str:
    """Return the level word that a log gives an event: INFO, WARNING or ERROR."""
    if isinstance(event, Error):
        return "ERROR"
    return "WARNING" if isinstance(event, Warning) else "INFO"


def line_of(event: Event, at: datetime) -> str:
    """Return an event as a line of JSON, with the date at which it was written (`at`) and its level
    if above INFO.
    """
    level = level_of(event)
    severity = {} if level == "INFO" else {"severity": level}  # `level` is a field of some events
    document = {"at": at.isoformat(timespec="milliseconds"), **severity, **plain(event)}
    return escaped_json(msgspec.json.encode(document).decode()) + "\n"


class JsonLines:
    """Append events to a file or stream as lines of JSON."""

    def __init__(self, target: Path | TextIO, wall: Wall) -> None:
        self._wall = wall
        self._path = target if isinstance(target, Path) else None
        if isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file() or target.is_block_device():
                check_file(target.resolve(), is_log)
            torn = _torn(target)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._stream: TextIO = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")
            if torn:
                self._stream.write("\n")
        else:
            self._stream = target

    def __call__(self, event: Event) -> None:
        """Raises OSError, with the file's name, if it cannot be written."""
        try:
            self._stream.write(line_of(event, self._wall()))
            self._stream.flush()
        except OSError as error:
            if self._path is not None:
                error.filename = str(self._path)
            raise


def is_log(head: bytes) -> bool:
    """Return whether a file that begins with `head` is empty or holds events as JSON lines."""
    return not head or head.startswith((b'{"at":', b'{"kind":'))


def _torn(path: Path) -> bool:
    """Return whether a file ends in half a line, as a full disk leaves it. New text then starts a
    line.
    """
    try:
        if not path.is_file() or not path.stat().st_size:
            return False
        with path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False
