"""What a screen knows of its run, from what it was sent: the newest of everything, a loss curve, what is wrong, a log.

Decided: it is bounded, however long a run lasts; time is handed in, so that what is shown depends on nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from rich.text import Text

from aftermath.tui import messages
from aftermath.tui.alerts import Alerts
from aftermath.tui.kept import KeptLines
from aftermath.watch import kinds
from aftermath.watch.phase import phase
from aftermath.watch.printable import printable
from aftermath.watch.progress import Progress
from aftermath.watch.sentences import Sentences
from aftermath.watch.standing import Standing

Role = Literal["member", "server", "watch", "testnet"]
E = TypeVar("E", bound=kinds.Event)
_LOSSES = 2000
_LAST = 5  # lines that are said again when the process dies
_FIRST = "starting"


@dataclass(slots=True)
class Counts:
    """What a member has counted since it began."""

    tokens: int = 0
    applied: int = 0
    fetched: int = 0
    failed: int = 0
    refused: int = 0
    attested: int = 0
    trouble: str = "none"
    """The newest with a result or a peer."""


@dataclass
class Board:
    """Everything that the tabs draw. `run_id` and `tier` are what the process was asked for."""

    role: Role
    run_id: str
    tier: int | None = None
    now: str = _FIRST
    standing: Standing | None = None
    here: frozenset[bytes] | None = None
    progress: Progress = field(default_factory=Progress)
    alerts: Alerts = field(default_factory=Alerts)
    losses: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_LOSSES))
    log: KeptLines = field(default_factory=KeptLines)
    newest: dict[type[kinds.Event], kinds.Event] = field(default_factory=dict)
    asked: dict[str, kinds.Evaluated] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    leaving: bool = False
    _sentences: Sentences = field(default_factory=Sentences)

    def take(self, message: messages.MESSAGES) -> None:
        """Learn from a message."""
        match message:
            case messages.Told():
                self._take(message.event)
            case messages.Stands():
                self.standing, self.here = message.standing, message.here
            case messages.Facts():
                self.facts.setdefault(message.tab, {}).update(message.rows)
            case messages.Line():
                self.log.say(message.t, Text(printable(message.text)))

    def of(self, kind: type[E]) -> E | None:
        """The newest event of a kind."""
        found = self.newest.get(kind)
        return found if isinstance(found, kind) else None

    def last_words(self) -> str:
        """What was said last."""
        return last_words(self.log)

    def _take(self, event: kinds.Event) -> None:
        self.newest[type(event)] = event
        self.progress.take(event)
        self.alerts.take(event)
        self.now = phase(event) or self.now
        self._count(event)
        sentence = self._sentences.of(event)
        if sentence is not None:
            self.log.say(event.t, Text.from_markup(sentence))

    def _count(self, event: kinds.Event) -> None:
        counts = self.counts
        match event:
            case kinds.Trained():
                counts.tokens += event.tokens
                if event.loss is not None:
                    self.losses.append((event.step, event.loss))
            case kinds.Applied():
                counts.applied += event.results
            case kinds.Evaluated():
                self.asked[f"{event.task} {event.metric}"] = event
            case kinds.Witnessed():
                counts.attested += event.sent
            case kinds.Fetched():
                counts.fetched += 1
            case kinds.FetchFailed():
                counts.failed += 1
                counts.trouble = f"member {event.seat}, round {event.height}: {event.why}"
            case kinds.Refused():
                counts.refused += 1
                counts.trouble = event.why if event.seat is None else f"member {event.seat}: {event.why}"
            case kinds.Leaving():
                self.leaving = True


def last_words(log: KeptLines) -> str:
    """What a process said last that is gone."""
    lines = [text.plain for _, text in log.lines][-_LAST:]
    return "\n".join(["the process has ended without a word; it said last:", *lines])
