"""The demo's live display: a row per member, the run's progress, its loss, and what is happening.

If the terminal cannot be redrawn (a pipe, a dumb terminal), it prints a line from time to time.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from aftermath.events.console import redraws
from aftermath.events.plot import loss_line
from aftermath.events.printable import printable
from aftermath.testnet.member_progress import RunProgress

LINE_EVERY = 10.0  # seconds between two lines, if the terminal cannot be redrawn
_FRAME = 4  # columns of the panel's border and padding


class DemoScreen:
    """Show the run's progress live. Use it as a context manager."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._live = Live(console=console, refresh_per_second=4) if redraws(console) else None
        self._line_at = 0.0
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, run_progress: RunProgress, now: str, elapsed: float) -> None:
        """Print new warnings, then redraw, or print a line if one is due. `elapsed`: seconds."""
        self._warn(run_progress)
        if self._live:
            self._live.update(picture(run_progress, self._title, now, elapsed, self._console.width))
        elif elapsed >= self._line_at:
            self._line_at = elapsed + LINE_EVERY
            self._console.print(
                line(run_progress, now, elapsed), soft_wrap=True, highlight=False, markup=False
            )

    def _warn(self, run_progress: RunProgress) -> None:
        """Print each warning once, even if several members report it."""
        for member in run_progress.members:
            for message in member.warnings:
                if message not in self._warned:
                    self._warned.add(message)
                    warning = f"warning: {member.name}: {printable(message, keep=chr(10))}"
                    self._console.print(
                        warning, soft_wrap=True, highlight=False, markup=False, style="yellow"
                    )


def line(run_progress: RunProgress, now: str, elapsed: float) -> str:
    """Return the progress as one line."""
    curve = run_progress.history.loss_curve()
    loss = f"loss {curve[-1][1]:.3f}" if curve else "no loss yet"
    run = run_progress.progress.text()
    states = ", ".join(f"{member.name}: {member.state}" for member in run_progress.members)
    return f"{elapsed:6.1f} s  {run}  {loss}  {states}; {now}"


def picture(
    run_progress: RunProgress, title: str, now: str, elapsed: float, width: int
) -> RenderableType:
    """Draw the display in `width` columns."""
    table = Table(expand=True, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("member", "tier", "round state", "step", "loss", "tok/s", "sent", "model from"):
        right = column in ("tier", "step", "loss", "tok/s", "sent")
        table.add_column(
            column, justify="right" if right else "left", no_wrap=column != "round state"
        )
    table.columns[2].min_width = 15  # fits the longest state in two lines
    for member in run_progress.members:
        table.add_row(
            member.name,
            str(member.tier),
            member.state,
            str(member.step),
            f"{member.loss:.4f}" if member.loss is not None else "-",
            f"{member.tokens_per_sec:,.0f}",
            f"{member.total(lambda t: t.sent) / 1e3:,.0f} kB",
            member.sources[-1].split()[-1] if member.sources else "",
        )
    curve = run_progress.history.loss_curve()
    lines = (
        Text(run_progress.progress.text()),
        Text(loss_line(curve, width - _FRAME)),
        Text(now, style="bold"),
    )
    panel = Panel(Group(table, *lines), title=f"{title}   {elapsed:5.1f} s")
    # the terminal echoes ^C on the last line, which would shift the display without this empty line
    return Group(panel, Text())
