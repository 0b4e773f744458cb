"""The screen of a member, a server or a run that is watched: six tabs of a board."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from aftermath.tui.board import Board
from aftermath.tui.drawing import Drawing
from aftermath.tui.log import Log
from aftermath.tui.members import Table, table
from aftermath.tui.messages import TABS
from aftermath.tui.pages import PAGES, progress_words
from aftermath.tui.rows import Rows
from aftermath.tui.tabbed import Tabbed
from aftermath.watch import kinds
from aftermath.watch.printable import printable
from aftermath.watch.standing_words import COLUMNS

_SCROLLBAR = 2  # columns of the terminal
_AROUND = 5  # lines that are no member's: title, tabs, the columns' names and keys


class Tui(Tabbed):
    """Shows a board."""

    def __init__(self, board: Board, clock: Callable[[], float], leave: Callable[[], None]) -> None:
        super().__init__(board.role, TABS, clock, leave)
        self._board = board

    def compose_tab(self, name: str) -> ComposeResult:
        if name == "Members":
            yield Rows()
        elif name == "Log":
            yield Log()
        else:
            with VerticalScroll():
                yield Drawing(f"page-{name}")

    def draw_tab(self, name: str) -> None:
        if name == "Members":
            self._draw_members()
        elif name == "Log":
            self.bottom.query_one(Log).show(self._board.log)
        else:
            page = self.bottom.query_one(f"#page-{name}", Drawing)
            now, width = self._clock(), page.container_size.width or self.size.width - 2
            page.show(PAGES[name](self._board, now, width, self.size.height))

    def title_text(self) -> Text:
        board = self._board
        name = {"member": "run", "server": "server of run", "watch": "run"}[board.role]
        tier = "" if board.tier is None else f", tier {board.tier}"
        title = Text(f"{name} {printable(board.run_id)}{tier}", no_wrap=True, overflow="ellipsis")
        return title.append(f"   {progress_words(board)}", "not bold")

    @property
    def leaving(self) -> bool:
        return self._board.leaving

    def _draw_members(self) -> None:
        found, started = self._board.standing, self._board.of(kinds.Started)
        shown: Table = (COLUMNS, {})
        if found is not None:
            room = self.size.width - (_SCROLLBAR if len(found.members) > self.size.height - _AROUND else 0)
            shown = table(found, self._board.here, started.wallet if started is not None else None, room)
        self.bottom.query_one(Rows).show(*shown)
