"""The screen of a local testnet: the run with a row for each client, what happened, and what every process printed.

Decided: the state of a client is the last column, so that it is that which a narrow terminal cuts off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable

from aftermath.events.printable import printable
from aftermath.ui.terminal import messages
from aftermath.ui.terminal.board import KeptLines, last_words
from aftermath.ui.terminal.pages import NAMES, UNKNOWN, Facts, bar, grid
from aftermath.ui.terminal.tabbed import Tabbed
from aftermath.ui.terminal.widgets import Drawing, Log, Rows, clock

CLIENTS, LOG = "Clients", "Log"
COLUMNS = ("client", "tier", "loss", "killed", "back", "pid", "state")


class Overview(Tabbed):
    """Shows a board of a testnet."""

    CSS = f"""
    {Tabbed.CSS}
    #facts {{ height: auto; margin-bottom: 1; }}
    #lately {{ height: 5; padding-top: 1; text-wrap: nowrap; text-overflow: ellipsis; }}
    """

    def __init__(self, board: OverviewBoard, clock: Callable[[], float], leave: Callable[[], None]) -> None:
        super().__init__("testnet", (CLIENTS, LOG, *board.names), clock, leave)
        self._board = board

    def compose_tab(self, name: str) -> ComposeResult:
        if name == CLIENTS:
            yield Drawing("facts")
            yield Rows()
            yield Drawing("lately")
        else:
            yield Log()

    def draw_tab(self, name: str) -> None:
        if name == CLIENTS:
            self._draw_clients()
        else:
            kept = self._board.log if name == LOG else self._board.printed[name]
            self.bottom.query_one(f"#{name}").query_one(Log).show(kept)

    def title_text(self) -> Text:
        found = self._board.stands
        title = Text(f"local testnet of run {printable(self._board.run_id)}", no_wrap=True, overflow="ellipsis")
        return title.append(f"   {found.progress if found else 'being started'}", "not bold")

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter, or the mouse: the log of that client."""
        if event.row_key.value is not None:
            self.action_tab(event.row_key.value)

    def _draw_clients(self) -> None:
        board, bottom = self._board, self.bottom
        facts: Facts = dict.fromkeys(("config", "state", "steps", "clients"), UNKNOWN)
        rows: dict[str, list[str]] = {}
        if (found := board.stands) is not None:
            there = sum(client.pid is not None for client in found.clients)
            kills = sum(client.killed for client in found.clients)
            facts["config"], facts["state"] = found.config, found.state
            facts["steps"] = bar(found.progress, found.step, found.total, self.size.width - 2 - NAMES)
            facts["clients"] = f"{there} of {len(found.clients)} run, {kills} killed so far"
            for client in found.clients:
                loss = UNKNOWN if client.loss is None else f"{client.loss:.4f}"
                cells = (client.tier, loss, client.killed, client.back, client.pid or UNKNOWN, client.state)
                rows[client.name] = [client.name, *(printable(str(cell)) for cell in cells)]
        bottom.query_one("#facts", Drawing).show(grid(facts))
        bottom.query_one(Rows).show(COLUMNS, rows)
        lately = (Text.assemble((f"{clock(t):>8}  ", "dim"), text) for t, text in board.lately)
        bottom.query_one("#lately", Drawing).show(Text("\n").join(lately))


OWN = "testnet"
"""Who did what the testnet itself did."""
_LATELY = 4


@dataclass
class OverviewBoard:
    """Everything that the tabs draw. `names`: the processes that have one, what keeps the run first."""

    run_id: str
    names: tuple[str, ...]
    stands: messages.Clients | None = None
    log: KeptLines = field(default_factory=KeptLines)
    """What the testnet did and clients told."""
    printed: dict[str, KeptLines] = field(default_factory=dict)
    lately: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_LATELY))
    """What the testnet did last, a line of each."""

    def __post_init__(self) -> None:
        self.printed = {name: KeptLines() for name in self.names}

    def take(self, message: messages.MESSAGES) -> None:
        """Learn from a message."""
        match message:
            case messages.Clients():
                self.stands = message
            case messages.Line():
                self.lately.append((message.t, printable(message.text.partition("\n")[0])))
                self._say(message.t, OWN, message.text)
            case messages.Said():
                self._say(message.t, message.name, message.text)
            case messages.Output() if message.name in self.printed:
                for line in message.lines:
                    self.printed[message.name].say(None, Text(printable(line)))

    def last_words(self) -> str:
        """What was said last."""
        return last_words(self.log)

    def _say(self, t: float, who: str, text: str) -> None:
        width = max(map(len, (OWN, *self.names)))
        self.log.say(t, Text.assemble((f"{who:{width}} | ", "dim"), printable(text, keep="\n")))
