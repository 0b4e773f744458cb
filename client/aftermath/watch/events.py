"""Events: the one stream every view of a member is drawn from.

Choices:
- an event is a flat JSON object with `t` (seconds of the member's clock), `kind` and plain fields; bytes travel as hex;
- a sink that fails (full disk, closed pipe) is dropped with one warning and never stops training;
- no sink blocks: files are line-buffered, the console prints a line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.markup import escape

from aftermath.watch.printable import printable

Event = dict[str, Any]


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
                print(f"warning: a log could not be written and is closed: {error}", file=sys.stderr)


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
    """Appends events to a file or stream as JSON lines."""

    def __init__(self, target: Path | TextIO) -> None:
        if isinstance(target, Path):
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._stream: TextIO = os.fdopen(descriptor, "a", buffering=1, encoding="utf-8")
        else:
            self._stream = target

    def __call__(self, event: Event) -> None:
        self._stream.write(json.dumps(event, separators=(",", ":")) + "\n")
        self._stream.flush()


# Events a person wants to read on the console, with the words for them. An error ends the process, which then says it
# on stderr.
_SENTENCES: dict[str, str] = {
    "measuring": "run {run_id} found; measuring this machine's speed at tier {tier}",
    "joined": "joined as member {slot} with tier {tier}",
    "state": "epoch {epoch}: {state}",
    "model": "model ready from {source}; step {step} comes next",
    "trained": "step {step}  loss {loss:.4f}  {tokens_per_sec:,.0f} tokens/s",
    "applied": "step {step}: applied {results} results",
    "waiting": "waits for the next epoch",
    "dropped": "members {slots} did not deliver and are dropped",
    "checkpoint": "checkpoint of step {step} at {path}",
    "left": "left the run",
    "finished": "the run is finished",
    "warning": "[yellow]{message}[/yellow]",
}


class ConsoleLines:
    """One line of text for each event a person wants to read."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __call__(self, event: Event) -> None:
        sentence = _SENTENCES.get(event["kind"])
        if sentence is None:
            return
        fields = {name: escape(printable(v, keep="\n")) if isinstance(v, str) else v for name, v in event.items()}
        if fields.get("loss", 0.0) is None:
            fields["loss"] = math.nan
        self._console.print(f"[dim]{event['t']:9.2f}s[/dim]  " + sentence.format_map(fields), highlight=False)
