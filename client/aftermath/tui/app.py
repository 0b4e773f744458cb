"""The screen of a member, a server or a run that is watched: six tabs of a board."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from aftermath.tui.board import Board
from aftermath.tui.drawing import Drawing
from aftermath.tui.log import Log
from aftermath.tui.messages import TABS
from aftermath.tui.pages import PAGES, progress_words
from aftermath.tui.rows import Rows
from aftermath.tui.tabbed import Tabbed
from aftermath.watch import kinds
from aftermath.watch.printable import printable
from aftermath.watch.standing import Standing
from aftermath.watch.standing_words import COLUMNS, row_of

_WALLET = 8  # characters of a wallet where there is little room
_WIDE = 110  # columns that have room for all of it


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
        found = self._board.standing
        columns = COLUMNS if self._board.here is None else (*COLUMNS[:-1], "here", COLUMNS[-1])
        self.bottom.query_one(Rows).show(columns, {} if found is None else self._members(found))

    def _members(self, found: Standing) -> dict[str, list[str]]:
        rows, started, here = {}, self._board.of(kinds.Started), self._board.here
        for member in found.members:
            seat, wallet, *others, seen = row_of(member)
            own = started is not None and wallet == started.wallet
            shown = wallet if self.size.width >= _WIDE else f"{wallet[:_WALLET]}…"
            cells = [f"{seat} (you)" if own else seat, shown, *others]
            if here is not None:
                cells.append("yes" if member.signer in here else "no")
            rows[seat] = [printable(cell) for cell in (*cells, seen)]
        return rows
