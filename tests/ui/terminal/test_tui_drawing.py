"""Tests that unchanged content is not redrawn, on every tab of every screen."""

from __future__ import annotations

import pytest
from rich.console import RenderableType
from textual.widgets import Static

from aftermath.ui.terminal.messages import TABS, StatusMessage
from aftermath.ui.terminal.testnet_app import LocalTestnetApp
from ui.terminal.tui_boards import busy_member, event_message, screen_of, where
from ui.terminal.tui_screen import drawn
from ui.terminal.tui_testnets import busy, overview_of, stands

LOOKS = 5


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the widgets that were redrawn, in order."""
    ids: list[str] = []
    update = Static.update

    def counted(self: Static, content: RenderableType = "", *, layout: bool = True) -> None:
        ids.append(str(self.id))
        update(self, content, layout=layout)

    monkeypatch.setattr(Static, "update", counted)
    return ids


@pytest.mark.slow
async def test_unchanged_board_draws_nothing(updates: list[str]) -> None:
    app = screen_of(busy_member())
    async with app.run_test(size=(80, 24)) as pilot:
        for number, tab in enumerate(TABS):
            await pilot.press(str(number + 1))
            await drawn(pilot)
            assert updates, tab
            updates.clear()
            for _ in range(LOOKS):
                app.draw()
            assert updates == [], tab
            # a tab without its own `Static` draws none when it is selected
            updates.append("drawn before")


async def test_new_value_redraws_only_its_widget_once(updates: list[str]) -> None:
    app = screen_of(busy_member())
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        updates.clear()
        app._board.take(StatusMessage(where(step=42)))
        for _ in range(LOOKS):
            app.draw()
        assert updates == ["page-Run"]
        app._board.take(
            event_message(
                "trained",
                t=100.0,
                epoch=0,
                height=41,
                step=42,
                loss=2.0,
                tokens=1,
                tokens_per_sec=1.0,
                seconds=1.0,
                encode_seconds=1.0,
            )
        )
        for _ in range(LOOKS):
            app.draw()
        assert updates == ["page-Run", "page-Run"]
        await pilot.resize_terminal(60, 24)
        screen = await drawn(pilot)
        assert "loss, steps 1 to 42" in screen


async def test_unchanged_testnet_screen_draws_nothing(updates: list[str]) -> None:
    app: LocalTestnetApp = overview_of(busy())
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        assert app._board.clients is not None
        updates.clear()
        for _ in range(LOOKS):
            app.draw()
        assert updates == []
        app._board.take(stands(step=app._board.clients.step + 1, progress="another step"))
        for _ in range(LOOKS):
            app.draw()
        assert updates == ["title", "facts"]


async def test_screen_under_no_color_uses_terminal_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text and background must not have the same shade."""
    monkeypatch.setenv("NO_COLOR", "1")
    app = screen_of(busy_member())
    async with app.run_test(size=(80, 24)) as pilot:
        await drawn(pilot)
        ground = app.screen.background_colors[1]
        strips = [
            strip.apply_filter(line_filter, ground)
            for strip in app.screen._compositor.render_strips()
            for line_filter in app._filters[-1:]
        ]
    styles = [segment.style for strip in strips for segment in strip if segment.style]
    colors = {color for style in styles for color in (style.color, style.bgcolor) if color}
    assert strips
    assert all(color.is_default for color in colors), colors
