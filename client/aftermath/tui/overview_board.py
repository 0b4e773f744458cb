"""What the screen of a local testnet knows, from what it was sent: where run and clients stand, what happened, and what
each process printed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rich.text import Text

from aftermath.tui import messages
from aftermath.tui.board import last_words
from aftermath.tui.kept import KeptLines
from aftermath.watch.printable import printable

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
