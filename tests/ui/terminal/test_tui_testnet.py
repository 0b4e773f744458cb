"""Tests of a local testnet's screen: its content, its keys, and that output of processes is shown
as plain text.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, TabbedContent

from aftermath.ui.terminal.messages import MESSAGES, ClientRow, Output, line_of, message_of
from ui.terminal.tui_screen import drawn
from ui.terminal.tui_testnets import busy, killed, overview_of, stands

CASES: dict[str, tuple[Callable[[], list[MESSAGES]], str]] = {
    "empty-clients": (list, "1"),
    "busy-clients": (busy, "1"),
    "busy-log": (busy, "2"),
    "busy-localnet": (busy, "3"),
    "killed-clients": (killed, "1"),
    "killed-client-3": (killed, "6"),
}


FAST_CASES = {"busy-clients", "killed-client-3"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in FAST_CASES else pytest.mark.slow) for case in CASES],
)
def test_testnet_screen_matches_snapshot(case: str, snap_compare: Callable[..., bool]) -> None:
    make_messages, key = CASES[case]

    async def turned_over(pilot: Pilot[None]) -> None:
        await pilot.press(key)
        await drawn(pilot)

    assert snap_compare(
        overview_of(make_messages()), run_before=turned_over, terminal_size=(80, 24)
    )


async def test_enter_on_client_opens_its_log() -> None:
    async with overview_of(busy()).run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("down", "enter")
        screen = await drawn(pilot)
        content = pilot.app.query_one(TabbedContent)
        assert content.active == "client-2"
        assert "11.00s  step 11  loss" in screen
        await pilot.press("1")
        assert "2 min left" in await drawn(pilot)
        assert pilot.app.query_one(DataTable).cursor_row == 1


async def test_kill_is_shown_and_counted_in_client_list() -> None:
    async with overview_of(killed()).run_test(size=(80, 24)) as pilot:
        lines = (await drawn(pilot)).splitlines()
    assert any("2 of 3 run, 2 killed so far" in line for line in lines)
    row = next(line for line in lines if line.lstrip().startswith("client-3"))
    assert row.split() == ["client-3", "2", "3.2500", "2", "1", "-", "killed,", "comes", "back"]
    assert sum("client-3 was killed (kill -9)" in line for line in lines) == 2


async def test_process_output_is_escaped() -> None:
    evil = "[bold red]evil[/]\x1b[2J\u202egpj.exe"
    async with overview_of([Output("client-1", (evil,))]).run_test(size=(80, 24)) as pilot:
        await pilot.press("4")
        assert "[bold red]evil[/]�[2J�gpj.exe" in await drawn(pilot)


@pytest.mark.slow
async def test_many_clients_have_scrolled_rows_and_tabs() -> None:
    names = ("server", *(f"client-{number}" for number in range(1, 31)))
    clients = [ClientRow(name, 0, "starting", None, 0, 0, 100) for name in names[1:]]
    async with overview_of([stands(*clients)], names).run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        await pilot.press("end")
        assert "client-30" in await drawn(pilot)
        await pilot.press("shift+tab")
        await drawn(pilot)
        assert pilot.app.query_one(TabbedContent).active == "client-30"


async def test_testnet_end_is_shown_until_done() -> None:
    left: list[int] = []
    app = overview_of(busy(), leave=lambda: left.append(1))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("ctrl+c")
        assert "Ending: clients leave" in await drawn(pilot)
        assert left == [1]
        assert app.is_running


def test_testnet_messages_survive_transport() -> None:
    for message in killed():
        assert message_of(line_of(message)) == message
