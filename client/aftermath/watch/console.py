"""A member's progress as lines of text: for a terminal that is scrolled, a pipe, a log.

Decided: one line per event that a person wants to read, with the seconds since the start; the date is in the first
line. An error ends the process, which then says it on stderr.
"""

from __future__ import annotations

from rich.console import Console

from aftermath.watch import kinds
from aftermath.watch.events import Wall
from aftermath.watch.sentences import Sentences


def redraws(console: Console) -> bool:
    """Whether a picture can be drawn over there; a pipe cannot, even where FORCE_COLOR makes rich take it for more."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


class ConsoleLines:
    """One line of text for each event a person wants to read, or if `quiet` for each warning."""

    def __init__(self, console: Console, wall: Wall, *, quiet: bool = False) -> None:
        self._console, self._wall, self._quiet = console, wall, quiet
        self._sentences = Sentences()

    def __call__(self, event: kinds.Event) -> None:
        sentence = self._sentences.of(event)
        if sentence is None or isinstance(event, kinds.Error):
            return
        if self._quiet and not isinstance(event, kinds.Warning):
            return
        date = f"{self._wall():%Y-%m-%d %H:%M:%S %Z}: " if isinstance(event, kinds.Started) else ""
        self._console.print(f"[dim]{event.t:9.2f}s[/dim]  {date}{sentence}", highlight=False)
