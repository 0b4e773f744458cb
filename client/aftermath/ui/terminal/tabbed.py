"""The base of all screens: tabs driven by keys.

Only changes of the visible tab are drawn, so that it works over a slow line. It uses the terminal's
own sixteen colours, readable on light and dark backgrounds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Footer, Static, TabbedContent, TabPane, Tabs

from aftermath.ui.terminal.board import Role
from aftermath.ui.terminal.widgets import DrawnText

SECONDS = 0.5
"""Seconds between two checks for changes."""
LEAVE: dict[Role, str] = {
    "member": "Leave",
    "server": "Stop the server",
    "watch": "Close",
    "testnet": "End the testnet",
}
LEAVING: dict[Role, str] = {
    "member": "Leaving: telling the run that this member leaves.",
    "server": "Stopping: members are disconnected.",
    "watch": "Closing.",
    "testnet": "Ending: clients leave, and all processes are stopped.",
}
HELP: dict[Role, str] = {
    "member": "q, Ctrl-C    leave the run, and end within two seconds",
    "server": "q, Ctrl-C    stop the server; started again, it resumes",
    "watch": "q, Ctrl-C    close; the run continues",
    "testnet": "Enter        the log of the selected client\nq, Ctrl-C    end the testnet and its processes",
}
KEYS = """\
Tab, Right   next tab
Left         the tab before
1 to {last}       a tab by its number
Up, Down     a line; also Page Up, Page Down, Home, End
?            this page; any key closes it"""
_KEYS = 9  # number keys


class Help(ModalScreen[None]):
    """A list of the keys."""

    CSS = """
    Help { align: center middle; }
    Help Static { width: auto; max-width: 76; height: auto; border: round ansi_blue; padding: 1 2; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(Text(self._text))

    def on_key(self) -> None:
        """Close at any key."""
        self.dismiss()


class Tabbed(App[None]):
    """Shows tabs. `clock` returns seconds since the start; `leave` is called each time q is
    pressed.
    """

    TITLE = "aftermath"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { dock: top; height: 1; text-style: bold; padding: 0 1; }
    #said { dock: bottom; height: 1; padding: 0 1; text-style: reverse; display: none; }
    TabPane { padding: 0 1; }
    VerticalScroll, KeyedTable, Log { height: 1fr; }
    KeyedTable > .datatable--cursor { text-style: reverse; background: ansi_default; color: ansi_default; }
    KeyedTable > .datatable--header { text-style: bold; background: ansi_default; color: ansi_blue; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "leave", show=False, priority=True),
        Binding("tab,right", "turn(1)", "Next tab", key_display="Tab", priority=True),
        Binding("shift+tab,left", "turn(-1)", show=False, priority=True),
        Binding("question_mark,h", "keys", "Help", key_display="?"),
    ]

    def __init__(
        self, role: Role, tabs: Sequence[str], clock: Callable[[], float], leave: Callable[[], None]
    ) -> None:
        # Otherwise textual's default theme decides how NO_COLOR is obeyed: black on black here.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self._role = role
        self._tabs = tuple(tabs)
        self._clock = clock
        self._leave = leave
        for number, name in enumerate(self._tabs[:_KEYS], 1):
            self.bind(str(number), f"tab('{name}')", show=False)
        self.bind("q", "leave", description=LEAVE[role])

    # --- content, for subclasses ---

    @abstractmethod
    def compose_tab(self, name: str) -> ComposeResult:
        """Compose the tab of this name."""

    @abstractmethod
    def draw_tab(self, name: str) -> None:
        """Update the tab of this name, which is visible."""

    @abstractmethod
    def title_text(self) -> Text:
        """Return the line above the tabs."""

    @property
    def leaving(self) -> bool:
        """Return whether the screen is ending."""
        return False

    # --- the frame ---

    def compose(self) -> ComposeResult:
        yield DrawnText("title")
        with TabbedContent(initial=self._tabs[0]):
            for name in self._tabs:
                with TabPane(name, id=name):
                    yield from self.compose_tab(name)
        yield Static(LEAVING[self._role], id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Draw, and redraw from now on."""
        self.query_one(Tabs).can_focus = False
        self._to(self._tabs[0])
        self.set_interval(SECONDS, self.draw)

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        """Draw the tab that was selected."""
        self._focus()
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        """Wrap the text again."""
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Update what is visible."""
        if not self.bottom.query("#title"):  # the screen is closing
            return
        self.bottom.query_one("#title", DrawnText).show(self.title_text())
        if self.leaving:
            self._say_so()
        elif self._role == "member":  # the member may ask for a second Ctrl-C instead
            self._say_so(visible=False)
        self.draw_tab(self._active)

    # --- keys ---

    def action_leave(self) -> None:
        """Show that the process is leaving, and leave."""
        self._say_so()
        self._leave()

    def _say_so(self, *, visible: bool = True) -> None:
        self.bottom.query_one("#said").display = visible
        self.bottom.query_one(Footer).display = not visible

    def action_turn(self, by: int) -> None:
        """Select the next tab, or the previous one."""
        if isinstance(self.screen, Help):
            self.screen.dismiss()
        else:
            self._to(self._tabs[(self._tabs.index(self._active) + by) % len(self._tabs)])

    def action_tab(self, name: str) -> None:
        """Select a tab by its name."""
        self._to(name)

    def action_keys(self) -> None:
        """Show the keys."""
        self.push_screen(
            Help(f"{KEYS.format(last=min(_KEYS, len(self._tabs)))}\n{HELP[self._role]}")
        )

    # --- tabs ---

    @property
    def bottom(self) -> Widget:
        """The screen that holds the tabs, below any dialog."""
        return self.screen_stack[0]

    @property
    def _active(self) -> str:
        return self.bottom.query_one(TabbedContent).active

    def _to(self, name: str) -> None:
        self.bottom.query_one(TabbedContent).active = name
        self._focus()

    def _focus(self) -> None:
        pane = self.bottom.query_one(f"#{self._active}", TabPane)
        next(child for child in pane.children if child.can_focus).focus(scroll_visible=False)
