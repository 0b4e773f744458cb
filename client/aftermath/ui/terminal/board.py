"""The state behind a screen: its arguments, newest events, losses, warnings and a log.

Its memory is bounded. The caller passes the time, so that the display depends on nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from rich.text import Text

from aftermath.base.files import state_directory
from aftermath.events import event_types
from aftermath.events.printable import printable
from aftermath.events.progress import Progress, phase, span
from aftermath.events.status import RunStatus
from aftermath.events.text import Sentences
from aftermath.ui.terminal import messages

STALE = 300.0
"""Seconds after which a warning disappears, if no later event resolves it."""
_MOST = 20  # alerts to keep


@dataclass(frozen=True)
class Alert:
    """A warning, or the error that ended the process."""

    message: str
    at: float
    until: str | None
    times: int
    fatal: bool

    def text(self, now: float) -> str:
        """Return when it was raised, how often, and its message."""
        when = f"{span(max(now - self.at, 0))} ago" + (
            f", {self.times} times" if self.times > 1 else ""
        )
        return f"{when}: {self.message}"


class Alerts:
    """A member's warnings that no later event resolved. Each expires."""

    def __init__(self) -> None:
        self._alerts: dict[str, Alert] = {}

    def take(self, event: event_types.Event) -> None:
        """Add an event."""
        kind = type(event).__struct_config__.tag
        self._alerts = {text: alert for text, alert in self._alerts.items() if alert.until != kind}
        if isinstance(event, event_types.Warning | event_types.Error):
            message = printable(event.message, keep="\n")
            fatal = isinstance(event, event_types.Error)
            earlier = self._alerts.pop(message, None)
            until = event.until if isinstance(event, event_types.Warning) else None
            self._alerts[message] = Alert(
                message, event.t, until, earlier.times + 1 if earlier else 1, fatal
            )
            for outdated in list(self._alerts)[:-_MOST]:
                del self._alerts[outdated]

    def now(self, now: float) -> list[Alert]:
        """Return the current warnings, the newest first."""
        fresh = (
            alert
            for alert in self._alerts.values()
            if alert.until or alert.fatal or now - alert.at <= STALE
        )
        return sorted(fresh, key=lambda alert: -alert.at)


MOST = 1000
"""Number of lines to keep."""


@dataclass
class KeptLines:
    """The newest MOST lines of a log."""

    lines: deque[tuple[float | None, Text]] = field(default_factory=lambda: deque(maxlen=MOST))
    """Seconds since the start and text of each line. None if the time is not shown."""
    count: int = 0
    """Number of all lines, including those that were dropped."""

    def say(self, t: float | None, text: Text) -> None:
        """Add a line."""
        self.lines.append((t, text))
        self.count += 1


Role = Literal["member", "server", "watch", "testnet"]
E = TypeVar("E", bound=event_types.Event)
_LOSSES = 2000
_LAST = 5  # lines that are printed again when the process dies
_FIRST = "starting"


@dataclass(slots=True)
class Counts:
    """A member's counters since it started."""

    tokens: int = 0
    applied: int = 0
    fetched: int = 0
    failed: int = 0
    refused: int = 0
    attested: int = 0
    trouble: str = "none"
    """The newest problem with a result or a peer."""


@dataclass
class Board:
    """Everything that the tabs draw. `run_id` and `tier` are the user's options."""

    role: Role
    run_id: str
    tier: int | None = None
    now: str = _FIRST
    status: RunStatus | None = None
    connected: frozenset[bytes] | None = None
    progress: Progress = field(default_factory=Progress)
    alerts: Alerts = field(default_factory=Alerts)
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LOSSES))
    log: KeptLines = field(default_factory=KeptLines)
    newest: dict[type[event_types.Event], event_types.Event] = field(default_factory=dict)
    asked: dict[str, event_types.Evaluated] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    leaving: bool = False
    _sentences: Sentences = field(default_factory=Sentences)

    def take(self, message: messages.MESSAGES) -> None:
        """Add a message."""
        match message:
            case messages.EventMessage():
                self._take(message.event)
            case messages.StatusMessage():
                self.status = message.status
                self.connected = message.connected
            case messages.Facts():
                self.facts.setdefault(message.tab, {}).update(message.rows)
            case messages.Line():
                self.log.say(message.t, Text(printable(message.text)))

    def of(self, kind: type[E]) -> E | None:
        """Return the newest event of a kind."""
        event = self.newest.get(kind)
        return event if isinstance(event, kind) else None

    def last_lines(self) -> str:
        """Return the last lines of the log."""
        return last_lines(self.log)

    def _take(self, event: event_types.Event) -> None:
        self.newest[type(event)] = event
        self.progress.take(event)
        self.alerts.take(event)
        self.now = phase(event) or self.now
        self._count(event)
        sentence = self._sentences.of(event)
        if sentence is not None:
            self.log.say(event.t, Text.from_markup(sentence))

    def _count(self, event: event_types.Event) -> None:
        counts = self.counts
        match event:
            case event_types.ShareTrained():
                counts.tokens += event.tokens
                if event.loss is not None:
                    self.losses.append((event.step, event.loss))
            case event_types.Applied():
                counts.applied += event.results
            case event_types.Evaluated():
                self.asked[f"{event.task} {event.metric}"] = event
            case event_types.Witnessed():
                counts.attested += event.sent
            case event_types.Fetched():
                counts.fetched += 1
            case event_types.FetchFailed():
                counts.failed += 1
                counts.trouble = f"seat {event.seat}, round {event.height}: {event.why}"
            case event_types.PeerRefused():
                counts.refused += 1
                counts.trouble = (
                    event.why if event.seat is None else f"seat {event.seat}: {event.why}"
                )
            case event_types.Leaving():
                self.leaving = True


def last_lines(log: KeptLines) -> str:
    """Return the last lines of a process that has ended."""
    lines = [text.plain for _, text in log.lines][-_LAST:]
    return "\n".join(["the process ended without a message; its last lines:", *lines])


class ScreenOptions(msgspec.Struct, frozen=True):
    """What the screen shows.

    `started` is on the machine's monotonic clock, which all its processes share. `names` are the
    processes of a testnet, in the order of their tabs.
    """

    role: Role
    run_id: str
    tier: int | None
    started: float
    names: tuple[str, ...] = ()


def errors_of(process: int) -> Path:
    """Return the file to which a screen process writes the error that ended it."""
    return state_directory() / f"screen-{process}.log"
