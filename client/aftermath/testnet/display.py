"""Show a local testnet: in tmux panes, on a screen of its own, or as lines.

Lines come from events instead of the output of processes, so they have one format, one order and
levels. If a screen ends by itself, lines follow, so that nothing is lost.
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
from aftermath.testnet.display_option import DisplayOption
from aftermath.testnet.member_progress import member_of
from aftermath.testnet.plan import RUN_ID, LocalTestnetPlan
from aftermath.ui.terminal.messages import Clients
from aftermath.ui.terminal.screen import Screen

OWN = "testnet"


class DisplayLines:
    """Prints what clients report, each line starting with the client's name."""

    def __init__(self, console: Console, level: Verbosity, width: int) -> None:
        """Pad names to `width` columns."""
        self._console = console
        self._level = level
        self._width = max(width, len(OWN))
        self._sentences: dict[str, Sentences] = defaultdict(Sentences)

    def report_action(self, sentence: str) -> None:
        """Report an action of the testnet itself."""
        self._tell(OWN, escape(printable(sentence, keep="\n")))

    def show_events(self, events: Iterable[EventRecord]) -> None:
        """Report clients' events of this level and above."""
        for record in events:
            name = member_of(record)
            sentence = self._sentences[name].of(record.event)
            serious = isinstance(record.event, event_types.Warning | event_types.Error)
            if sentence is None and self._level is Verbosity.DEBUG:
                sentence = in_full(record.event)
            if sentence is not None and isinstance(record.event, event_types.Warning):
                sentence = f"warning: {sentence}"
            if sentence is not None and (serious or self._level is not Verbosity.WARNING):
                self._tell(name, sentence)

    def show_clients(self, clients: Clients) -> None:
        """Ignore the clients' current state, which lines do not show."""

    def _tell(self, name: str, markup: str) -> None:
        self._console.print(
            f"[dim]{escape(name):{self._width}} |[/dim] {markup}",
            highlight=False,
            emoji=False,
            soft_wrap=True,
        )


MOST_READ = 1 << 16
"""Maximum bytes to read from a log at once."""


class ProcessOutput:
    """Reads new lines from log files, each under its name.

    If a log grows faster than it is read, only its end is read. A line is returned once it is
    complete. Of a progress bar, only the last state is returned.
    """

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._read = dict.fromkeys(logs, 0)

    def read(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the new lines of each log that has any."""
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
        except OSError:  # the log does not exist yet, or cannot be read: its tab stays as it is
            return []
        whole = chunk.rfind(b"\n") + 1 or (len(chunk) if len(chunk) == MOST_READ else 0)
        self._read[name] = begin + whole
        lines = chunk[:whole].decode(errors="replace").split("\n")
        return [line.rstrip("\r").rpartition("\r")[2] for line in lines if line.strip()]


class DisplayMode(StrEnum):
    """How a testnet is shown."""

    PANES = "panes"
    SCREEN = "screen"
    LINES = "lines"


def display_mode(pictures: DisplayOption, *, terminal: bool, tmux: bool) -> DisplayMode:
    """Return how to show the testnet, given the option, a terminal and tmux."""
    if not terminal:
        return DisplayMode.LINES
    if tmux and pictures is not DisplayOption.SCREEN:
        return DisplayMode.PANES
    return DisplayMode.LINES if pictures is DisplayOption.FALSE else DisplayMode.SCREEN


@contextmanager
def shown(
    showing: DisplayMode, plan: LocalTestnetPlan, keeper: str, console: Console, level: Verbosity
) -> Iterator[DisplayLines]:
    """Show the testnet during the block. `keeper` names the process that hosts the run."""
    names = [client.name for client in plan.clients]
    if showing is not DisplayMode.SCREEN:
        yield DisplayLines(console, level, max(map(len, names)))
        return
    tabs = (keeper, *names)
    with Screen(
        console, lambda: datetime.now(UTC), time.monotonic(), "testnet", RUN_ID, names=tabs
    ) as screen:
        yield _OnScreen(
            console, level, screen, ProcessOutput({name: plan.log(name) for name in tabs})
        )


class _OnScreen(DisplayLines):
    """Reports to a screen while it is open, and as lines afterwards."""

    def __init__(
        self, console: Console, level: Verbosity, screen: Screen, printed: ProcessOutput
    ) -> None:
        super().__init__(console, level, len(OWN))
        self._screen = screen
        self._printed = printed

    def _tell(self, name: str, markup: str) -> None:
        if not self._screen.open:
            super()._tell(name, markup)
        elif name == OWN:
            self._screen.line(Text.from_markup(markup).plain)
        else:
            self._screen.report(name, Text.from_markup(markup).plain)

    def show_clients(self, clients: Clients) -> None:
        self._screen.show_clients(clients)
        for name, lines in self._printed.read():
            self._screen.output(name, lines)
