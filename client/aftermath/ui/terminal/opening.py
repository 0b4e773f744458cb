"""The arguments of a screen process, and the file for its errors."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aftermath.base.files import state_directory
from aftermath.ui.terminal.board import Role


class ScreenOptions(msgspec.Struct, frozen=True):
    """What the screen shows.

    `started` is on the machine's monotonic clock, which all its processes share. `names` are the
    processes of a testnet, in the order of their tabs.
    """

    role: Role
    run_id: str
    tier: int | None
    started: float
    names: tuple[str, ...] = ()


def errors_of(process: int) -> Path:
    """Return the file to which a screen process writes the error that ended it."""
    return state_directory() / f"screen-{process}.log"
