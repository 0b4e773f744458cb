"""A member's progress as lines of text: on a terminal, in a pipe or in a log.

A terminal shows the seconds since the start, and the date in the first line. Everything else is a log: each line has
the time in UTC and a level word, so that a log of weeks can be searched.
"""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console

from aftermath.watch import kinds
from aftermath.watch.events import Wall, level_of
from aftermath.watch.sentences import Sentences


def redraws(console: Console) -> bool:
    """Whether a picture can be drawn over there; a pipe cannot, even where FORCE_COLOR makes rich take it for more."""
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


class ConsoleLines:
    """One line of text for each event a person wants to read, or if `quiet` for each warning and error.

    An error ends the process, which prints it on standard error. So it is a line here only if the output is a log that
    does not also get standard error.
    """

    def __init__(self, console: Console, wall: Wall, *, quiet: bool = False, has_own_output: bool = True) -> None:
        self._console, self._wall, self._quiet = console, wall, quiet
        self._sentences = Sentences()
        self._is_log = not console.file.isatty()
        self._says_errors = self._is_log and has_own_output

    def __call__(self, event: kinds.Event) -> None:
        """Print the event's sentence, if it has one."""
        sentence = self._sentences.of(event)
        if sentence is None:
            return
        if self._quiet and not isinstance(event, kinds.Warning | kinds.Error):
            return
        if isinstance(event, kinds.Error) and not self._says_errors:
            return
        if self._is_log:
            begin = f"{stamp(self._wall())} {level_of(event):<8}"
        else:
            date = f"{self._wall():%Y-%m-%d %H:%M:%S %Z}: " if isinstance(event, kinds.Started) else ""
            begin = f"[dim]{event.t:9.2f}s[/dim]  {date}"
        self._console.print(f"{begin}{sentence}", highlight=False, emoji=False)


def stamp(at: datetime) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"
