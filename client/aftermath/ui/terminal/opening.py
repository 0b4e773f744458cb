"""What a screen and the process that starts it agree on before a word is said: what it is about, and where it says
what was wrong with it.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from aftermath.base.files import state_directory
from aftermath.ui.terminal.board import Role


class Opening(msgspec.Struct, frozen=True):
    """`started`: on the machine's monotonic clock, which all its processes share. `names`: the processes of a testnet,
    in the order of their tabs.
    """

    role: Role
    run_id: str
    tier: int | None
    started: float
    names: tuple[str, ...] = ()


def errors_of(process: int) -> Path:
    """Where a screen's process leaves what ended it."""
    return state_directory() / f"screen-{process}.log"
