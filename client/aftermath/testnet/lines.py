"""What clients tell, as lines that begin with the client's name: for terminals without panes, pipes and logs.

Decided: the lines are made of events and not of what processes print, so that they have one form, one order and levels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape

from aftermath.base.verbosity import Verbosity
from aftermath.events import event_types
from aftermath.events.printable import printable
from aftermath.events.reader import EventRecord
from aftermath.events.text import Sentences, in_full
from aftermath.testnet.story import member_of
from aftermath.ui.terminal.messages import Clients

OWN = "testnet"


class Lines:
    """Prints them."""

    def __init__(self, console: Console, level: Verbosity, width: int) -> None:
        """`width`: that of the longest name."""
        self._console, self._level, self._width = console, level, max(width, len(OWN))
        self._sentences: dict[str, Sentences] = defaultdict(Sentences)

    def own(self, sentence: str) -> None:
        """Something that the testnet itself did."""
        self._tell(OWN, escape(printable(sentence, keep="\n")))

    def told(self, events: Iterable[EventRecord]) -> None:
        """What clients told, as far as the level goes."""
        for told in events:
            name = member_of(told)
            sentence = self._sentences[name].of(told.event)
            serious = isinstance(told.event, event_types.Warning | event_types.Error)
            if sentence is None and self._level is Verbosity.DEBUG:
                sentence = in_full(told.event)
            if sentence is not None and isinstance(told.event, event_types.Warning):
                sentence = f"warning: {sentence}"
            if sentence is not None and (serious or self._level is not Verbosity.WARNING):
                self._tell(name, sentence)

    def stands(self, clients: Clients) -> None:
        """Where all stand now: lines say what happens, and not that."""

    def _tell(self, name: str, markup: str) -> None:
        self._console.print(
            f"[dim]{escape(name):{self._width}} |[/dim] {markup}", highlight=False, emoji=False, soft_wrap=True
        )
