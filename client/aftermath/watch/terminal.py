"""The live picture of one member in a terminal: what it does now, how far the run is, its loss, and what is wrong.

Decided: every line has its place from the start, so that the eye finds it again; the picture never is taller than the
terminal; a warning stays until an event says that it is outdated, or for some minutes if none ever will.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aftermath.base.counted import counted
from aftermath.watch import kinds
from aftermath.watch.phase import phase
from aftermath.watch.printable import printable
from aftermath.watch.progress import Progress, span
from aftermath.watch.spark import course

_FACTS = ("now", "run", "speed", "peers", "traffic", "chain")
_LOSSES = 1000
_MOST = 20  # warnings kept
_STALE = 300.0  # seconds after which a warning that nothing else outdates is taken down
_FRAME = 4  # columns of the panel's border and padding


def redraws(console: Console) -> bool:
    """Whether a picture can be drawn over there; a pipe cannot, even where FORCE_COLOR makes rich take it for more."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


@dataclass
class _Warning:
    message: str
    at: float
    until: str | None
    times: int = 1


class TerminalView:
    """A sink that keeps a picture up to date; use as a context manager. `elapsed`: seconds since the start."""

    def __init__(self, console: Console, run_id: str, tier: int, elapsed: Callable[[], float]) -> None:
        self._title, self._elapsed = f"run {run_id}, tier {tier}", elapsed
        self._facts = dict.fromkeys(_FACTS, "-") | {"now": "starting"}
        self._progress = Progress()
        self._losses: deque[tuple[int, float]] = deque(maxlen=_LOSSES)
        self._warnings: dict[str, _Warning] = {}
        self._drawing = threading.Lock()  # the picture is drawn on a thread of its own
        self._live = Live(self, console=console, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, event: kinds.Event) -> None:
        with self._drawing:
            self._take(event)

    def _take(self, event: kinds.Event) -> None:
        kind = type(event).__struct_config__.tag
        self._progress.take(event)
        self._warnings = {text: said for text, said in self._warnings.items() if said.until != kind}
        if now := phase(event):
            self._facts["now"] = now
        if self._progress.total:
            self._facts["run"] = self._progress.words()
        if isinstance(event, kinds.Trained):
            self._facts["speed"] = f"{event.tokens_per_sec:,.0f} tokens/s"
            if event.loss is not None:
                self._losses.append((event.step, event.loss))
        elif isinstance(event, kinds.Measured):
            self._facts["speed"] = f"about {counted(event.weight, 'sequence')} a minute"
        elif isinstance(event, kinds.Traffic):
            self._facts["peers"] = f"{event.peers} in reach"
            self._facts["traffic"] = f"{event.sent / 1e6:.2f} MB sent, {event.received / 1e6:.2f} MB received"
            spent = event.costs
            self._facts["chain"] = f"{counted(spent['transactions'], 'transaction')}, {spent['lamports']:,} lamports"
        elif isinstance(event, kinds.Sample):
            self._facts["text"] = printable(" ".join(f"{event.prompt}{event.text}".split()))
        elif isinstance(event, kinds.Warning | kinds.Error):
            message = printable(event.message, keep="\n")
            before = self._warnings.pop(message, None)
            times = before.times + 1 if before else 1
            until = event.until if isinstance(event, kinds.Warning) else None
            self._warnings[message] = _Warning(message, event.t, until, times)
            for outdated in list(self._warnings)[:-_MOST]:
                del self._warnings[outdated]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._drawing:
            yield self._picture(console, options.max_width - _FRAME, console.height)
            yield Text()  # where the terminal echoes ^C: at the picture's end it would wrap, and shift the picture

    def _picture(self, console: Console, width: int, height: int) -> Panel:
        facts = Table.grid(padding=(0, 2))
        for name, value in self._facts.items():
            facts.add_row(name, Text(value, no_wrap=True, overflow="ellipsis"))
        loss = Text(course(self._losses, width), no_wrap=True, overflow="ellipsis")
        room = max(0, height - len(self._facts) - 5)  # without the border, the loss, two last lines
        warnings = self._lines(console, width, room)
        title = Text(printable(self._title))
        return Panel(Group(facts, loss, *warnings), title=title, subtitle=f"{span(self._elapsed())} since the start")

    def _lines(self, console: Console, width: int, room: int) -> list[Text]:
        """The warnings that are not outdated, the newest last, as many as have room."""
        now = self._elapsed()
        shown: list[Text] = []
        for said in reversed(self._warnings.values()):
            age = now - said.at
            if said.until is None and age > _STALE:
                continue
            when = f"{span(max(age, 0))} ago" + (f", {said.times} times" if said.times > 1 else "")
            lines = list(Text(f"{when}: {said.message}", style="yellow").wrap(console, max(width, 1)))
            if len(lines) > room:
                return shown or lines[:room]
            shown, room = lines + shown, room - len(lines)
        return shown
