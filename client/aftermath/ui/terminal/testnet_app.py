"""The screen of a local testnet: the run with a row per client, recent actions, and all output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.text import Text
from textual.app import ComposeResult
from textual.widgets import DataTable

from aftermath.events.printable import printable
from aftermath.ui.terminal import messages
from aftermath.ui.terminal.board import KeptLines, last_lines
from aftermath.ui.terminal.pages import NAMES, UNKNOWN, Facts, bar, grid
from aftermath.ui.terminal.tabbed import Tabbed
from aftermath.ui.terminal.widgets import DrawnText, KeyedTable, Log, clock

CLIENTS = "Clients"
LOG = "Log"
COLUMNS = ("client", "tier", "loss", "killed", "back", "pid", "state")


class LocalTestnetApp(Tabbed):
    """Shows a testnet's board.

    The client's state is the last column, so a narrow terminal cuts it off first.
    """

    CSS = f"""
    {Tabbed.CSS}
    #facts {{ height: auto; margin-bottom: 1; }}
    #lately {{ height: 5; padding-top: 1; text-wrap: nowrap; text-overflow: ellipsis; }}
    """

    def __init__(
        self, board: LocalTestnetBoard, clock: Callable[[], float], leave: Callable[[], None]
    ) -> None:
        super().__init__("testnet", (CLIENTS, LOG, *board.names), clock, leave)
        self._board = board

    def compose_tab(self, name: str) -> ComposeResult:
        if name == CLIENTS:
            yield DrawnText("facts")
            yield KeyedTable()
            yield DrawnText("lately")
        else:
            yield Log()

    def draw_tab(self, name: str) -> None:
        if name == CLIENTS:
            self._draw_clients()
        else:
            lines = self._board.log if name == LOG else self._board.printed[name]
            self.bottom.query_one(f"#{name}").query_one(Log).show(lines)

    def title_text(self) -> Text:
        testnet_status = self._board.clients
        title = Text(
            f"local testnet of run {printable(self._board.run_id)}",
            no_wrap=True,
            overflow="ellipsis",
        )
        return title.append(
            f"   {testnet_status.progress if testnet_status else 'being started'}", "not bold"
        )

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the log of the selected client."""
        if event.row_key.value is not None:
            self.action_tab(event.row_key.value)

    def _draw_clients(self) -> None:
        board = self._board
        bottom = self.bottom
        facts: Facts = dict.fromkeys(("config", "state", "steps", "clients"), UNKNOWN)
        rows: dict[str, list[str]] = {}
        if (testnet_status := board.clients) is not None:
            running = sum(client.pid is not None for client in testnet_status.clients)
            kills = sum(client.killed for client in testnet_status.clients)
            facts["config"] = testnet_status.config
            facts["state"] = testnet_status.state
            facts["steps"] = bar(
                testnet_status.progress,
                testnet_status.step,
                testnet_status.total,
                self.size.width - 2 - NAMES,
            )
            facts["clients"] = (
                f"{running} of {len(testnet_status.clients)} run, {kills} killed so far"
            )
            for client in testnet_status.clients:
                loss = UNKNOWN if client.loss is None else f"{client.loss:.4f}"
                cells = (
                    client.tier,
                    loss,
                    client.killed,
                    client.back,
                    client.pid or UNKNOWN,
                    client.state,
                )
                rows[client.name] = [client.name, *(printable(str(cell)) for cell in cells)]
        bottom.query_one("#facts", DrawnText).show(grid(facts))
        bottom.query_one(KeyedTable).show(COLUMNS, rows)
        lately = (Text.assemble((f"{clock(t):>8}  ", "dim"), text) for t, text in board.lately)
        bottom.query_one("#lately", DrawnText).show(Text("\n").join(lately))


OWN = "testnet"
"""Name for the testnet's own actions in the log."""
_LATELY = 4


@dataclass
class LocalTestnetBoard:
    """Everything that the tabs draw. `names` are the processes with a tab; the first is the network
    or server.
    """

    run_id: str
    names: tuple[str, ...]
    clients: messages.Clients | None = None
    log: KeptLines = field(default_factory=KeptLines)
    """Actions of the testnet and reports of clients."""
    printed: dict[str, KeptLines] = field(default_factory=dict)
    lately: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=_LATELY))
    """The testnet's last actions, one line each."""

    def __post_init__(self) -> None:
        self.printed = {name: KeptLines() for name in self.names}

    def take(self, message: messages.MESSAGES) -> None:
        """Add a message."""
        match message:
            case messages.Clients():
                self.clients = message
            case messages.Line():
                self.lately.append((message.t, printable(message.text.partition("\n")[0])))
                self._say(message.t, OWN, message.text)
            case messages.ReportMessage():
                self._say(message.t, message.name, message.text)
            case messages.Output() if message.name in self.printed:
                for line in message.lines:
                    self.printed[message.name].say(None, Text(printable(line)))

    def last_lines(self) -> str:
        """Return the last lines of the log."""
        return last_lines(self.log)

    def _say(self, t: float, who: str, text: str) -> None:
        width = max(map(len, (OWN, *self.names)))
        self.log.say(t, Text.assemble((f"{who:{width}} | ", "dim"), printable(text, keep="\n")))
