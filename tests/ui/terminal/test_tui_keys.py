"""Tests of keys, of stable positions, and that strangers' text is shown as plain text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, RichLog, TabbedContent

from aftermath.ui.terminal.board import Role
from aftermath.ui.terminal.messages import MESSAGES, TABS, Facts, Line, StatusMessage
from aftermath.ui.terminal.tabbed import Help
from ui.terminal.tui_boards import (
    EVIL,
    NOW,
    busy_member,
    event_message,
    failing_member,
    screen_of,
    server,
    where,
)
from ui.terminal.tui_screen import drawn, screen_text

ROWS = {
    "Run": ["run", "name", "now", "state", "steps", "deadline", "members", "waits for"],
    "Training": ["loss", "speed", "share", "applied", "model", "last eval", "sample text"],
    "Network": [
        "peers",
        "sent",
        "received",
        "fetched",
        "failed fetches",
        "refused",
        "trouble",
        "sent by type",
    ],
    "Chain": [
        "epoch",
        "round",
        "state",
        "deadline",
        "witnesses",
        "wallet",
        "seat",
        "attestations",
        "checkpoint",
        "costs",
    ],
}


def watch() -> list[MESSAGES]:
    return [StatusMessage(where())]


STATES: dict[str, tuple[Role, Callable[[], list[MESSAGES]]]] = {
    "empty": ("member", list),
    "busy": ("member", busy_member),
    "failing": ("member", failing_member),
    "server": ("server", server),
    "watch": ("watch", watch),
}


async def on(pilot: Pilot[None], tab: str) -> str:
    await pilot.press(str(TABS.index(tab) + 1))
    return await drawn(pilot)


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await pilot.pause(0.02)


# The tests of row order and of strangers' text draw the tabs of the other states.
FAST_STATES = {("server", (80, 24)), ("watch", (40, 12))}
WIDE = (120, 40)  # nightly: more room hides nothing


def tier(state: str, size: tuple[int, int]) -> tuple[pytest.MarkDecorator, ...]:
    if (state, size) in FAST_STATES:
        return ()
    return (pytest.mark.nightly if size == WIDE else pytest.mark.slow,)


@pytest.mark.parametrize(
    ("state", "size"),
    [
        pytest.param(state, size, marks=tier(state, size))
        for state in STATES
        for size in ((80, 24), WIDE, (40, 12))
    ],
)
async def test_every_tab_is_drawn_in_every_state(state: str, size: tuple[int, int]) -> None:
    role, messages = STATES[state]
    app = screen_of(messages(), role)
    async with app.run_test(size=size) as pilot:
        for tab in TABS:
            screen = await on(pilot, tab)
            assert "run demo" in screen
            assert "\x1b" not in screen
            assert "\u202e" not in screen


@pytest.mark.parametrize("messages", [list, busy_member, failing_member])
async def test_rows_keep_their_order_when_values_appear(
    messages: Callable[[], list[MESSAGES]],
) -> None:
    async with screen_of(messages()).run_test(size=(80, 24)) as pilot:
        for tab, rows in ROWS.items():
            lines = (await on(pilot, tab)).splitlines()
            assert "run demo" in lines[0]
            names = [name for line in lines for name in rows if line.startswith(f" {name}  ")]
            assert names == rows, (tab, lines)


async def test_tab_and_arrow_keys_cycle_tabs() -> None:
    async with screen_of(busy_member()).run_test(size=(80, 24)) as pilot:
        content = pilot.app.query_one(TabbedContent)
        went = [content.active]
        for key in ("tab", "left", "left", "right", "shift+tab", "3"):
            await pilot.press(key)
            went.append(content.active)
    assert went == ["Run", "Members", "Run", "Log", "Run", "Log", "Training"]


async def test_up_and_down_keys_move_in_table_and_log() -> None:
    app = screen_of([*busy_member(), StatusMessage(where(count=60))])
    async with app.run_test(size=(80, 24)) as pilot:
        await on(pilot, "Members")
        await pilot.press("end")
        table = app.query_one(DataTable)
        assert table.cursor_row == 59
        await pilot.press("up", "up")
        assert table.cursor_row == 57
        app._board.take(StatusMessage(where(step=42, count=60)))
        app.draw()
        await drawn(pilot)
        assert table.cursor_row == 57, "what changes leaves the eye where it was"
        await on(pilot, "Log")
        log = app.query_one(RichLog)
        bottom = log.scroll_y
        await pilot.press("pageup")
        await drawn(pilot)
        assert log.scroll_y < bottom


async def test_question_mark_opens_help_and_any_key_closes_it() -> None:
    async with screen_of(busy_member()).run_test(size=(80, 24)) as pilot:
        for key in ("x", "tab", "escape"):
            await pilot.press("question_mark")
            await drawn(pilot)
            assert "leave the run, and end within two seconds" in screen_text(pilot.app)
            await pilot.press(key)
            await drawn(pilot)
            assert not isinstance(pilot.app.screen, Help)


@pytest.mark.parametrize(
    ("key", "role", "says"),
    [
        ("ctrl+c", "server", "Stopping"),
        ("ctrl+q", "watch", "Closing"),
    ],
)
async def test_leave_is_shown_until_done(key: str, role: Role, says: str) -> None:
    left: list[int] = []
    app = screen_of(busy_member(), role, leave=lambda: left.append(1))
    async with app.run_test(size=(80, 24)) as pilot:
        assert says not in screen_text(app)
        await pilot.press(key)
        await drawn(pilot)
        assert left == [1]
        assert says in screen_text(app)
        assert app.is_running


async def test_external_signal_is_shown_as_leaving() -> None:
    async with screen_of([*busy_member(), event_message("leaving", t=129.0)]).run_test(
        size=(80, 24)
    ) as pilot:
        await drawn(pilot)
        assert "Leaving: telling the run" in screen_text(pilot.app)


async def test_leave_works_while_help_is_open() -> None:
    left: list[int] = []
    app = screen_of(busy_member(), leave=lambda: left.append(1))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("question_mark")
        await pilot.press("ctrl+c")
        await drawn(pilot)
    assert left == [1]


async def test_text_of_strangers_is_escaped_on_every_tab() -> None:
    evil = replace(where(), name=EVIL, description=EVIL)
    messages = [
        *failing_member(),
        StatusMessage(evil),
        event_message("checkpoint", t=1.0, step=1, path=EVIL),
        event_message("model", t=1.0, source=EVIL, step=0),
        event_message("sample", t=1.0, step=1, prompt=EVIL, text=EVIL),
        event_message("evaluated", t=1.0, step=1, task=EVIL, metric="acc", value=0.5, docs=1),
        Facts("Network", {EVIL: EVIL}),
        Line(2.0, EVIL),
    ]
    async with screen_of(messages).run_test(size=(120, 40)) as pilot:
        for tab in (tab for tab in TABS if tab != "Members"):
            screen = await on(pilot, tab)
            assert "[bold red]evil[/]�[2J�gpj.exe" in screen, tab
            assert "\x1b" not in screen
            assert "\u202e" not in screen


async def test_log_follows_and_wraps_again_for_another_width() -> None:
    app = screen_of(busy_member())
    async with app.run_test(size=(80, 24)) as pilot:
        await on(pilot, "Log")
        app._board.take(Line(NOW, "word " * 20 + "end"))
        app.draw()
        await drawn(pilot)
        assert "end" in screen_text(app).split()
        await pilot.resize_terminal(140, 24)
        await until(pilot, lambda: "word " * 20 + "end" in screen_text(app))
        for number in range(1100):
            app._board.take(Line(NOW, f"line {number}"))
        app.draw()
        await drawn(pilot)
        assert "line 1099" in screen_text(app)
        assert len(app.query_one(RichLog).lines) <= 1000
