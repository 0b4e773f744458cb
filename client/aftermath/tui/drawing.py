"""A text or a grid on a page, which is laid out and drawn again only if it has changed.

Decided: two drawings are the same if a terminal would be sent the same for both, since pages make them again at every
look.
"""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.segment import Segment
from textual.widgets import Static

_PAPER = Console(color_system="standard", force_terminal=True, legacy_windows=False)


class Drawing(Static):
    """Shows what it is given; the same again changes nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(id=name)
        self._drawn: list[Segment] | None = None

    def show(self, drawn: RenderableType) -> None:
        """Have this stand here."""
        width = max(1, self.container_size.width or self.app.size.width)
        found = list(_PAPER.render(drawn, _PAPER.options.update(width=width)))
        if found != self._drawn:
            self._drawn = found
            self.update(drawn)
