"""What a screen process is started with, and where it leaves its errors."""

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
    """Return the file in which a screen process leaves the error that ended it."""
    return state_directory() / f"screen-{process}.log"
