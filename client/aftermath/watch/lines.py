"""Events that were kept, of one member or of several, as lines of text: each with its date and with whose it is."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console
from rich.markup import escape

from aftermath.watch.printable import printable
from aftermath.watch.reader import About, EventRecord
from aftermath.watch.sentences import Sentences, in_full

_SHOWN = 8
"""Characters of a wallet that tell members apart."""


def short(about: About) -> str:
    """A member's name in few characters."""
    return f"{printable(about.wallet)[:_SHOWN]} tier {about.tier}"


class EventLines:
    """One line for each event a person wants to read, or with `everything` for every one."""

    def __init__(self, console: Console, *, everything: bool) -> None:
        self._console, self._everything = console, everything
        self._sentences: dict[About, Sentences] = defaultdict(Sentences)

    def __call__(self, told: EventRecord) -> None:
        sentence = self._sentences[told.about].of(told.event)
        if sentence is None and self._everything:
            sentence = in_full(told.event)
        if sentence is not None:
            begin = f"[dim]{told.at:%Y-%m-%d %H:%M:%S}  {escape(short(told.about)):{_SHOWN + 7}}[/dim]"
            self._console.print(f"{begin}  {sentence}", highlight=False, emoji=False)
