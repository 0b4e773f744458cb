"""Snapshot tests of every tab on a terminal of 80 by 24: empty, busy and with failures.

`pytest tests/ui/terminal/test_tui_snapshots.py --snapshot-update` updates them. Look at the
pictures before you commit them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from aftermath.ui.terminal.board import Role
from aftermath.ui.terminal.messages import MESSAGES
from ui.terminal.tui_boards import busy_member, failing_member, screen_of, server
from ui.terminal.tui_screen import drawn

CASES: dict[str, tuple[Role, Callable[[], list[MESSAGES]], str]] = {
    "empty-run": ("member", list, "1"),
    "busy-run": ("member", busy_member, "1"),
    "busy-members": ("member", busy_member, "2"),
    "busy-training": ("member", busy_member, "3"),
    "busy-network": ("member", busy_member, "4"),
    "busy-chain": ("member", busy_member, "5"),
    "busy-log": ("member", busy_member, "6"),
    "failing-run": ("member", failing_member, "1"),
    "failing-log": ("member", failing_member, "6"),
    "server-members": ("server", server, "2"),
}
FAST_CASES = {"busy-run", "busy-network", "failing-log", "server-members"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in FAST_CASES else pytest.mark.slow) for case in CASES],
)
def test_screen_matches_snapshot(case: str, snap_compare: Callable[..., bool]) -> None:
    role, make_messages, key = CASES[case]

    async def turned_over(pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await drawn(pilot)

    assert snap_compare(
        screen_of(make_messages(), role), run_before=turned_over, terminal_size=(80, 24)
    )
