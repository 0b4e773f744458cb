"""The screen: six tabs of a board, in the terminal's own colours, driven by keys.

Decided: nothing moves but what has changed, and only the tab that is seen is drawn, so that it is good over a slow
line; the terminal's own sixteen colours, so that it is readable on light and dark ones alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import DataTable, Footer, RichLog, Static, TabbedContent, TabPane, Tabs

from aftermath.tui.board import Board, Role
from aftermath.tui.messages import TABS
from aftermath.tui.pages import PAGES, progress_words
from aftermath.watch import kinds
from aftermath.watch.printable import printable
from aftermath.watch.standing import Standing
from aftermath.watch.standing_words import COLUMNS, row_of

SECONDS = 0.5
"""Between two looks at what has changed."""
LEAVE: dict[Role, str] = {"member": "Leave", "server": "Stop the server", "watch": "Close"}
LEAVING: dict[Role, str] = {
    "member": "Leaving: the run is being told that this member goes.",
    "server": "Stopping: members are let go.",
    "watch": "Closing.",
}
HELP: dict[Role, str] = {
    "member": "q, Ctrl-C    leave the run, and end within two seconds",
    "server": "q, Ctrl-C    stop the server; started again, it goes on where it was",
    "watch": "q, Ctrl-C    close; the run goes on",
}
KEYS = """\
Tab, Right   next tab
Left         the tab before
1 to 6       a tab by its number
Up, Down     a line; also Page Up, Page Down, Home, End
?            this page; any key closes it"""
_WALLET = 8  # characters of a wallet where there is little room
_WIDE = 110  # columns that have room for all of it


class Help(ModalScreen[None]):
    """What the keys do."""

    CSS = """
    Help { align: center middle; }
    Help Static { width: auto; max-width: 76; height: auto; border: round ansi_blue; padding: 1 2; }
    """

    def __init__(self, role: Role) -> None:
        super().__init__()
        self._text = f"{KEYS}\n{HELP[role]}"

    def compose(self) -> ComposeResult:
        yield Static(Text(self._text))

    def on_key(self) -> None:
        """Any key closes it."""
        self.dismiss()


class Members(DataTable[Text]):
    """A table in which Home and End go to the first and last member, not to columns."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]


class Tui(App[None]):
    """Shows a board. `clock`: seconds since the start; `leave`: what q does, once for each time it is pressed."""

    TITLE = "aftermath"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { dock: top; height: 1; text-style: bold; padding: 0 1; }
    #said { dock: bottom; height: 1; padding: 0 1; text-style: reverse; display: none; }
    TabPane { padding: 0 1; }
    VerticalScroll, Members, RichLog { height: 1fr; }
    Members > .datatable--cursor { text-style: reverse; background: ansi_default; color: ansi_default; }
    Members > .datatable--header { text-style: bold; background: ansi_default; color: ansi_blue; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True),
        Binding("tab,right", "turn(1)", "Next tab", key_display="Tab", priority=True),
        Binding("shift+tab,left", "turn(-1)", show=False, priority=True),
        Binding("question_mark,h", "keys", "Help", key_display="?"),
        *(Binding(str(number), f"tab('{name}')", show=False) for number, name in enumerate(TABS, 1)),
    ]

    def __init__(self, board: Board, clock: Callable[[], float], leave: Callable[[], None]) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._board, self._clock, self._leave = board, clock, leave
        self._rows: dict[str, list[str]] = {}
        self._columns: tuple[str, ...] = ()
        self._logged = 0
        self._log_width = 0
        self.bind("q", "leave", description=LEAVE[board.role])

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with TabbedContent(initial="Run"):
            for name in TABS:
                with TabPane(name, id=name):
                    if name == "Members":
                        yield Members(cursor_type="row")
                    elif name == "Log":
                        yield RichLog(wrap=True, min_width=20, max_lines=1000)
                    else:
                        with VerticalScroll():
                            yield Static(id=f"page-{name}")
        yield Static(LEAVING[self._board.role], id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Draw, and go on drawing."""
        self.query_one(Tabs).can_focus = False
        self._to("Run")
        self.set_interval(SECONDS, self.draw)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """A tab was chosen, by a key or the mouse."""
        self._focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """What was wrapped is wrapped anew."""
        self.call_after_refresh(self.draw)

    # --- keys -----------------------------------------------------------------------------------------------------

    def action_leave(self) -> None:
        """Say so, and have it done."""
        self._say_so()
        self._leave()

    def _say_so(self) -> None:
        self._bottom.query_one("#said").display = True
        self._bottom.query_one(Footer).display = False

    def action_turn(self, by: int) -> None:
        """To the next tab, or the one before."""
        if isinstance(self.screen, Help):
            self.screen.dismiss()
        else:
            self._to(TABS[(TABS.index(self._active) + by) % len(TABS)])

    def action_tab(self, name: str) -> None:
        """To a tab by its name."""
        self._to(name)

    def action_keys(self) -> None:
        """Say what the keys do."""
        self.push_screen(Help(self._board.role))

    # --- drawing --------------------------------------------------------------------------------------------------

    @property
    def _active(self) -> str:
        return self._bottom.query_one(TabbedContent).active

    @property
    def _bottom(self) -> Widget:
        return self.screen_stack[0]

    def _to(self, name: str) -> None:
        self._bottom.query_one(TabbedContent).active = name
        self._focus()

    def _focus(self) -> None:
        pane = self._bottom.query_one(f"#{self._active}", TabPane)
        pane.children[0].focus(scroll_visible=False)

    def draw(self) -> None:
        """Bring what is seen up to date."""
        if not self._bottom.query("#title"):  # it is being closed
            return
        self._bottom.query_one("#title", Static).update(self._title())
        if self._board.leaving:
            self._say_so()
        if self._active == "Members":
            self._draw_members()
        elif self._active == "Log":
            self._draw_log()
        else:
            page = self._bottom.query_one(f"#page-{self._active}", Static)
            now, width = self._clock(), page.container_size.width or self.size.width - 2
            page.update(PAGES[self._active](self._board, now, width, self.size.height))

    def _title(self) -> Text:
        board = self._board
        name = {"member": "run", "server": "server of run", "watch": "run"}[board.role]
        tier = "" if board.tier is None else f", tier {board.tier}"
        title = Text(f"{name} {printable(board.run_id)}{tier}", no_wrap=True, overflow="ellipsis")
        return title.append(f"   {progress_words(board)}", "not bold")

    def _draw_members(self) -> None:
        table, found = self._bottom.query_one(Members), self._board.standing
        columns = COLUMNS if self._board.here is None else (*COLUMNS[:-1], "here", COLUMNS[-1])
        rows = {} if found is None else self._members(found)
        if columns != self._columns or list(rows) != list(self._rows):
            at = table.cursor_row
            table.clear(columns=True)
            for column in columns:
                table.add_column(column, key=column)
            for key, cells in rows.items():
                table.add_row(*map(Text, cells), key=key)
            table.move_cursor(row=min(at, max(0, len(rows) - 1)))
        else:
            for key, cells in rows.items():
                for column, before, now in zip(columns, self._rows[key], cells, strict=True):
                    if before != now:
                        table.update_cell(key, column, Text(now), update_width=True)
        self._rows, self._columns = rows, columns

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

    def _draw_log(self) -> None:
        log, board = self._bottom.query_one(RichLog), self._board
        if log.size.width != self._log_width:
            log.clear()
            self._log_width, self._logged = log.size.width, board.said - len(board.lines)
        new = min(board.said - self._logged, len(board.lines))
        for t, text in list(board.lines)[len(board.lines) - new :]:
            log.write(Text.assemble((f"{_clock(t):>8}  ", "dim"), text), expand=True)
        self._logged = board.said


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds since the start."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
