"""Ask before an action that cannot be undone.

The question needs a terminal. Without one, or with --json, `--yes` replaces it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.events.printable import printable

YES = Annotated[
    bool, typer.Option("--yes", help="Do not ask for confirmation.", show_default=False)
]


def check_can_ask(command: str, effect: str, *, as_json: bool) -> None:
    """Raise UsageError if there is no terminal to ask on, or with --json."""
    terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))
    if as_json or not terminal:
        reason = "--json asks no questions" if as_json else "there is no terminal to ask on"
        raise UsageError(f"{command} {effect}, and {reason}", "Add --yes to confirm")


def agreed(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is yes."""
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
