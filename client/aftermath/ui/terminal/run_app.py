"""The screen of a member, a server or a watched run: six tabs of a board."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll

from aftermath.events import event_types
from aftermath.events.members_table import COLUMNS, row_of
from aftermath.events.printable import printable
from aftermath.events.status import RunStatus
from aftermath.ui.terminal.board import Board
from aftermath.ui.terminal.messages import TABS
from aftermath.ui.terminal.pages import PAGES, progress_text
from aftermath.ui.terminal.tabbed import Tabbed
from aftermath.ui.terminal.widgets import DrawnText, KeyedTable, Log

_SCROLLBAR = 2  # columns of the terminal
_AROUND = 5  # lines without members: title, tabs, column names and keys


class RunApp(Tabbed):
    """Shows a board."""

    def __init__(self, board: Board, clock: Callable[[], float], leave: Callable[[], None]) -> None:
        super().__init__(board.role, TABS, clock, leave)
        self._board = board

    def compose_tab(self, name: str) -> ComposeResult:
        if name == "Members":
            yield KeyedTable()
        elif name == "Log":
            yield Log()
        else:
            with VerticalScroll():
                yield DrawnText(f"page-{name}")

    def draw_tab(self, name: str) -> None:
        if name == "Members":
            self._draw_members()
        elif name == "Log":
            self.bottom.query_one(Log).show(self._board.log)
        else:
            page = self.bottom.query_one(f"#page-{name}", DrawnText)
            now = self._clock()
            width = page.container_size.width or self.size.width - 2
            page.show(PAGES[name](self._board, now, width, self.size.height))

    def title_text(self) -> Text:
        board = self._board
        name = {"member": "run", "server": "server of run", "watch": "run"}[board.role]
        tier = "" if board.tier is None else f", tier {board.tier}"
        title = Text(f"{name} {printable(board.run_id)}{tier}", no_wrap=True, overflow="ellipsis")
        return title.append(f"   {progress_text(board)}", "not bold")

    @property
    def leaving(self) -> bool:
        return self._board.leaving

    def _draw_members(self) -> None:
        status = self._board.status
        started = self._board.of(event_types.MemberStarted)
        content: Table = (COLUMNS, {})
        if status is not None:
            room = self.size.width - (
                _SCROLLBAR if len(status.members) > self.size.height - _AROUND else 0
            )
            content = table(
                status, self._board.connected, started.wallet if started is not None else None, room
            )
        self.bottom.query_one(KeyedTable).show(*content)


_WALLET = 8  # characters of a shortened wallet
_CELL_PADDING = 2  # columns of the terminal around each cell
_FEWER = {"takes part, witness": "witness", "joins the next epoch": "joins next"}
_FORMS: tuple[tuple[int, frozenset[str]], ...] = (
    (0, frozenset()),
    (1, frozenset()),
    (2, frozenset()),
    (2, frozenset({"points"})),
    (2, frozenset({"points", "weight"})),
)
"""Layouts from widest to narrowest: how much is shortened (1: wallets, 2: words too), and the
columns to omit. The first one that fits is used.
"""
Table = tuple[tuple[str, ...], dict[str, list[str]]]
"""The columns, and the cells of each seat."""


def table(
    status: RunStatus, here: frozenset[bytes] | None, own_wallet: str | None, room: int
) -> Table:
    """Return the members' columns and rows for `room` terminal columns.

    `here`: the connected wallets, if known. `own_wallet`: this member's wallet. The right column
    shows which members have left, so it is never cut. If the table is too wide, wallets are
    shortened first, then words. Last, columns that do not show presence are omitted.
    """
    columns = COLUMNS if here is None else (*COLUMNS[:-1], "here", COLUMNS[-1])
    rows: dict[str, Mapping[str, str]] = {}
    for member in status.members:
        row = dict(zip(COLUMNS, row_of(member), strict=True))
        rows[row["seat"]] = row | {
            "seat": f"{row['seat']} (you)" if row["wallet"] == own_wallet else row["seat"],
            "here": "yes" if here is not None and member.signer in here else "no",
        }
    for cut, without in _FORMS:
        names = tuple(name for name in columns if name not in without)
        cells = {
            seat: [printable(_cell(name, row[name], cut)) for name in names]
            for seat, row in rows.items()
        }
        if _width(names, cells.values()) <= room:
            break
    return names, cells


def _cell(name: str, text: str, cut: int) -> str:
    if name == "wallet" and cut > 0:
        return f"{text[:_WALLET]}…"
    if name == "standing" and cut > 1:
        for usual, fewer in _FEWER.items():
            text = text.replace(usual, fewer)
    return text


def _width(names: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    return sum(
        _CELL_PADDING + max(map(cell_len, column)) for column in zip(names, *rows, strict=True)
    )
