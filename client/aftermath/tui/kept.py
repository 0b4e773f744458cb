"""Lines that are told one after the other, as far as they are kept.

Decided: the newest thousand, however many were told.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from rich.text import Text

MOST = 1000
"""Lines that are kept."""


@dataclass
class KeptLines:
    """The newest lines."""

    lines: deque[tuple[float | None, Text]] = field(default_factory=lambda: deque(maxlen=MOST))
    """When each was told, in seconds since the start, where that is shown."""
    said: int = 0
    """Lines in all, with those that are not kept."""

    def say(self, t: float | None, text: Text) -> None:
        """One more."""
        self.lines.append((t, text))
        self.said += 1
