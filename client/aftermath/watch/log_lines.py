"""Prints what modules log, for processes in which nothing else shows it."""

from __future__ import annotations

import logging
import sys

from aftermath.base.verbosity import VERBOSITY, Verbosity
from aftermath.watch.printable import printable


class LogLines(logging.Handler):
    """Prints records on stderr, one a line: debug records with the module that logged them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, without the characters that move a cursor."""
        if sys.stderr is None:
            return
        logged_by = f"{record.name}: " if record.levelno < logging.WARNING else ""
        text = f"{record.levelname.lower()}: {logged_by}{self.format(record)}"
        print(printable(text, keep="\n"), file=sys.stderr, flush=True)


def show_logs() -> None:
    """Print warnings of all modules, and with -v all that ours log, unless the process shows logs already."""
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(LogLines())
    logging.getLogger("aftermath").setLevel(logging.DEBUG if VERBOSITY.get() is Verbosity.DEBUG else logging.NOTSET)


def show_debug_logs(logger: logging.Logger) -> None:
    """With -v, print what `logger` gets below warnings, which an event shows. Its records go no further."""
    if VERBOSITY.get() is Verbosity.DEBUG:
        lines = LogLines()
        lines.addFilter(lambda record: record.levelno < logging.WARNING)
        logger.addHandler(lines)
