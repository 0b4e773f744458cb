"""The tab of a log.

Decided: its lines are wrapped again if the terminal's width changes; it follows what is told as long as its end is
seen.
"""

from __future__ import annotations

from rich.text import Text
from textual.widgets import RichLog

from aftermath.tui.kept import MOST, KeptLines


class Log(RichLog):
    """Shows lines that are kept."""

    def __init__(self) -> None:
        super().__init__(wrap=True, min_width=20, max_lines=MOST)
        self._drawn = 0
        self._width = 0

    def show(self, kept: KeptLines) -> None:
        """Bring it up to date."""
        if self.size.width != self._width:
            self.clear()
            self._width, self._drawn = self.size.width, kept.said - len(kept.lines)
        new = min(kept.said - self._drawn, len(kept.lines))
        for t, text in list(kept.lines)[len(kept.lines) - new :]:
            self.write(text if t is None else Text.assemble((f"{clock(t):>8}  ", "dim"), text), expand=True)
        self._drawn = kept.said


def clock(seconds: float) -> str:
    """Hours, minutes and seconds since the start."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
