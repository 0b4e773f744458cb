"""The terminal view of one member: what it does now, its loss, its traffic, and the last things it said."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, Self

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aftermath.watch.events import Event
from aftermath.watch.phase import phase
from aftermath.watch.printable import printable
from aftermath.watch.spark import spark

_LINES = 8
_LOSSES = 60


class TerminalView:
    """A sink that keeps a panel up to date; use as a context manager."""

    def __init__(self, run_id: str, tier: int) -> None:
        self._title = f"run {run_id}, tier {tier}"
        self._facts: dict[str, Any] = {"state": "starting"}
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._said: deque[str] = deque(maxlen=_LINES)
        self._live = Live(self._picture(), refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def __call__(self, event: Event) -> None:
        kind = event["kind"]
        if now := phase(event):
            self._facts["state"] = now
        if kind == "trained":
            self._facts |= {"step": event["step"], "tokens/s": f"{event['tokens_per_sec']:,.0f}"}
            if event["loss"] is not None:
                self._losses.append(event["loss"])
        elif kind == "traffic":
            self._facts["peers"] = event["peers"]
            self._facts["sent / received"] = f"{event['sent'] / 1e6:.2f} / {event['received'] / 1e6:.2f} MB"
            self._facts["transactions"] = f"{event['transactions']} ({event['lamports']:,} lamports)"
        elif "message" in event:
            message = printable(event["message"], keep="\n")
            self._said.append(f"{event['t']:8.1f}s  {message}")
        self._live.update(self._picture())

    def _picture(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        for name, value in self._facts.items():
            table.add_row(name, str(value))
        loss = f"loss {spark(list(self._losses))} {self._losses[-1]:.4f}" if self._losses else "no loss yet"
        return Panel(Group(table, Text(loss), *(Text(line) for line in self._said)), title=Text(printable(self._title)))
