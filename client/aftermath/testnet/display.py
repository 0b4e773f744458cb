"""What clients tell, as lines that begin with the client's name: for terminals without panes, pipes and logs.

Decided: the lines are made of events and not of what processes print, so that they have one form, one order and levels.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from aftermath.base.stdio import Verbosity
from aftermath.events import event_types
from aftermath.events.printable import printable
from aftermath.events.reader import EventRecord
from aftermath.events.text import Sentences, in_full
from aftermath.testnet.member_progress import member_of
from aftermath.testnet.options import Pictures
from aftermath.testnet.plan import RUN_ID, Plan
from aftermath.ui.terminal.messages import Clients
from aftermath.ui.terminal.screen import Screen

OWN = "testnet"


class Lines:
    """Prints them."""

    def __init__(self, console: Console, level: Verbosity, width: int) -> None:
        """`width`: that of the longest name."""
        self._console, self._level, self._width = console, level, max(width, len(OWN))
        self._sentences: dict[str, Sentences] = defaultdict(Sentences)

    def own(self, sentence: str) -> None:
        """Something that the testnet itself did."""
        self._tell(OWN, escape(printable(sentence, keep="\n")))

    def told(self, events: Iterable[EventRecord]) -> None:
        """What clients told, as far as the level goes."""
        for told in events:
            name = member_of(told)
            sentence = self._sentences[name].of(told.event)
            serious = isinstance(told.event, event_types.Warning | event_types.Error)
            if sentence is None and self._level is Verbosity.DEBUG:
                sentence = in_full(told.event)
            if sentence is not None and isinstance(told.event, event_types.Warning):
                sentence = f"warning: {sentence}"
            if sentence is not None and (serious or self._level is not Verbosity.WARNING):
                self._tell(name, sentence)

    def stands(self, clients: Clients) -> None:
        """Where all stand now: lines say what happens, and not that."""

    def _tell(self, name: str, markup: str) -> None:
        self._console.print(
            f"[dim]{escape(name):{self._width}} |[/dim] {markup}", highlight=False, emoji=False, soft_wrap=True
        )


MOST_READ = 1 << 16
"""Bytes of a log that are read at once."""


class Printed:
    """Reads some logs, each under its name."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._read = dict.fromkeys(logs, 0)

    def read(self) -> Iterator[tuple[str, list[str]]]:
        """The lines that were printed since the last time, of those who printed any."""
        for name, log in self._logs.items():
            if lines := self._lines(name, log):
                yield name, lines

    def _lines(self, name: str, log: Path) -> list[str]:
        try:
            with log.open("rb") as file:
                size = file.seek(0, 2)
                begin = max(self._read[name], size - MOST_READ)
                file.seek(begin)
                chunk = file.read(MOST_READ)
        except OSError:  # it has not begun, or cannot be read: its tab stays as it is
            return []
        whole = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) == MOST_READ else 0)
        self._read[name] = begin + whole
        lines = chunk[:whole].decode(errors="replace").split("\n")
        return [line.rstrip("\r").rpartition("\r")[2] for line in lines if line.strip()]


class Showing(StrEnum):
    """What it comes to."""

    PANES = "panes"
    SCREEN = "screen"
    LINES = "lines"


def showing_of(pictures: Pictures, *, terminal: bool, tmux: bool) -> Showing:
    """How it is seen, where there is a terminal to draw on or not, and tmux or not."""
    if not terminal:
        return Showing.LINES
    if tmux and pictures is not Pictures.SCREEN:
        return Showing.PANES
    return Showing.LINES if pictures is Pictures.FALSE else Showing.SCREEN


@contextmanager
def shown(showing: Showing, plan: Plan, keeper: str, console: Console, level: Verbosity) -> Iterator[Lines]:
    """What is told while the block runs is seen like this. `keeper`: the process that keeps the run."""
    names = [client.name for client in plan.clients]
    if showing is not Showing.SCREEN:
        yield Lines(console, level, max(map(len, names)))
        return
    tabs = (keeper, *names)
    with Screen(console, lambda: datetime.now(UTC), time.monotonic(), "testnet", RUN_ID, names=tabs) as screen:
        yield _OnScreen(console, level, screen, Printed({name: plan.log(name) for name in tabs}))


class _OnScreen(Lines):
    """Tells a screen, as long as there is one."""

    def __init__(self, console: Console, level: Verbosity, screen: Screen, printed: Printed) -> None:
        super().__init__(console, level, len(OWN))
        self._screen, self._printed = screen, printed

    def _tell(self, name: str, markup: str) -> None:
        if not self._screen.open:
            super()._tell(name, markup)
        elif name == OWN:
            self._screen.line(Text.from_markup(markup).plain)
        else:
            self._screen.said(name, Text.from_markup(markup).plain)

    def stands(self, clients: Clients) -> None:
        self._screen.clients(clients)
        for name, lines in self._printed.read():
            self._screen.output(name, lines)
