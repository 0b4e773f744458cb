"""How a local testnet is seen: in the panes of tmux, on a screen of its own, or as lines.

Decided: pictures need a terminal that can be drawn on and read from; where there is none, or a screen ends by itself,
lines say what happens, so that nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum

from rich.console import Console
from rich.text import Text

from aftermath.base.verbosity import Verbosity
from aftermath.testnet.lines import OWN, Lines
from aftermath.testnet.plan import RUN_ID, Plan
from aftermath.testnet.printed import Printed
from aftermath.testnet.wished import Pictures
from aftermath.ui.terminal.messages import Clients
from aftermath.ui.terminal.screen import Screen


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
