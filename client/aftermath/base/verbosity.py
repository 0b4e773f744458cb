"""The options -q and -v of every command: how much it prints in addition to its result."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from enum import StrEnum


class Verbosity(StrEnum):
    """How much is told: warnings and errors alone, what a person wants to read, or everything."""

    WARNING = "warning"
    INFO = "info"
    DEBUG = "debug"


VERBOSITY: ContextVar[Verbosity] = ContextVar("how much the running command prints", default=Verbosity.INFO)


def is_quiet() -> bool:
    """Return whether only warnings and errors are printed."""
    return VERBOSITY.get() is Verbosity.WARNING


def say(sentence: str) -> None:
    """Print a sentence of our own about progress on stderr, unless the command is quiet."""
    if not is_quiet():
        print(sentence, file=sys.stderr, flush=True)
