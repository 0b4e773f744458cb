"""Tests that the table of members keeps its last column on narrow terminals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aftermath.events.status import RunStatus
from aftermath.ui.terminal.messages import StatusMessage
from aftermath.ui.terminal.run_app import table
from ui.terminal.tui_boards import WALLET, screen_of, server, where
from ui.terminal.tui_screen import drawn

ALL = ("seat", "wallet", "tier", "standing", "weight", "points", "here", "last seen")


def members(standing: str = "takes part", count: int = 5) -> RunStatus:
    """Return members of a run in progress. Every third one is a witness."""
    status = where(count=count)
    rows = (replace(one, standing=standing, seen="epoch 2, round 39") for one in status.members)
    return replace(status, members=tuple(rows))


@pytest.mark.parametrize("count", [5, 40])
async def test_server_screen_of_80_columns_shows_last_seen(count: int) -> None:
    """The scroll bar that many members need does not hide the column."""
    status = members(count=count)
    here = frozenset(one.signer for one in status.members[:2])
    app = screen_of([*server(), StatusMessage(status, here)], "server")
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2")
        lines = [line for line in (await drawn(pilot)).splitlines() if "…" in line]
    assert len(lines) == min(count, 24 - 5)
    assert all("epoch 2, round 39" in line for line in lines)
    assert "witness" in lines[0]


def test_narrow_table_drops_columns_in_order() -> None:
    here: frozenset[bytes] = frozenset()
    status = members("takes part, joins the next epoch")
    forms = {}
    for room in range(200, 60, -1):
        columns, rows = table(status, here, WALLET, room)
        forms.setdefault((columns, *rows["1"]), room)
    (all_, *full), (_, *cut), (_, *fewer), without_points, least = forms
    assert all_ == ALL
    assert full[:2] == ["1 (you)", WALLET]
    assert cut == ["1 (you)", f"{WALLET[:8]}…", *full[2:]]
    assert fewer[3].startswith("takes part, joins next")
    assert [*fewer[:3], *fewer[4:]] == [*cut[:3], *cut[4:]]
    assert without_points[0] == tuple(name for name in ALL if name != "points")
    assert least[0] == ("seat", "wallet", "tier", "standing", "here", "last seen")
    assert {form[-1] for form in forms} == {"epoch 2, round 39"}


def test_table_width_fits_its_content_and_room() -> None:
    status = members()
    columns, rows = table(status, None, None, 1000)
    cells = [columns, *rows.values()]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    needed = sum(widths) + 2 * len(widths)
    assert table(status, None, None, needed) == (columns, rows)
    assert table(status, None, None, needed - 1) != (columns, rows)
