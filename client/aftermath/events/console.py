"""Print a member's events, and log records of modules, as lines of text.

On a terminal each line has the seconds since the start, and the first line has the date. In a file
or pipe each line has the time in UTC and a level, so that logs of weeks can be searched.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

from rich.console import Console

from aftermath.base.stdio import VERBOSITY, Verbosity
from aftermath.events import event_types
from aftermath.events.printable import printable
from aftermath.events.stream import Wall, level_of
from aftermath.events.text import Sentences


def redraws(console: Console) -> bool:
    """Return whether the console can redraw. A pipe cannot, even if FORCE_COLOR makes rich believe
    so.
    """
    return console.file.isatty() and console.is_terminal and not console.is_dumb_terminal


class ConsoleLines:
    """Print one line for each event of interest, or only for warnings and errors if `quiet`.

    An error ends the process, which also prints it on standard error. So this prints an error only
    if the output is a log that does not receive standard error.
    """

    def __init__(
        self, console: Console, wall: Wall, *, quiet: bool = False, has_own_output: bool = True
    ) -> None:
        self._console = console
        self._wall = wall
        self._quiet = quiet
        self._sentences = Sentences()
        self._is_log = not console.file.isatty()
        self._says_errors = self._is_log and has_own_output

    def __call__(self, event: event_types.Event) -> None:
        """Print the event's sentence, if it has one."""
        sentence = self._sentences.of(event)
        if sentence is None:
            return
        if self._quiet and not isinstance(event, event_types.Warning | event_types.Error):
            return
        if isinstance(event, event_types.Error) and not self._says_errors:
            return
        if self._is_log:
            begin = f"{stamp(self._wall())} {level_of(event):<8}"
        else:
            date = (
                f"{self._wall():%Y-%m-%d %H:%M:%S %Z}: "
                if isinstance(event, event_types.MemberStarted)
                else ""
            )
            begin = f"[dim]{event.t:9.2f}s[/dim]  {date}"
        self._console.print(f"{begin}{sentence}", highlight=False, emoji=False)


def stamp(at: datetime) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z"


class LogLines(logging.Handler):
    """Print log records on stderr, one per line. Debug records name their module."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, without the characters that move a cursor."""
        if sys.stderr is None:
            return
        logged_by = f"{record.name}: " if record.levelno < logging.WARNING else ""
        text = f"{record.levelname.lower()}: {logged_by}{self.format(record)}"
        print(printable(text, keep="\n"), file=sys.stderr, flush=True)


def show_logs() -> None:
    """Print warnings of all modules, and with -v all our records, unless logging is already
    set up.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(LogLines())
    logging.getLogger("aftermath").setLevel(
        logging.DEBUG if VERBOSITY.get() is Verbosity.DEBUG else logging.NOTSET
    )


def show_debug_logs(logger: logging.Logger) -> None:
    """With -v, print records of `logger` below warnings. Events show warnings, so records do not
    propagate.
    """
    if VERBOSITY.get() is Verbosity.DEBUG:
        lines = LogLines()
        lines.addFilter(lambda record: record.levelno < logging.WARNING)
        logger.addHandler(lines)
