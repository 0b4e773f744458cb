"""Which outages of one thing a person is told of.

The first is told at once. After that short ones are told rarely: the pause doubles (a minute to an hour) each time that
one is told, and starts again after as long without any. A long one (`long`) is told whatever the pause. The end of an
outage is told if the outage was. Those not told are counted, and the next one that is told says how many there were.
All times are seconds of the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.base.counted import counted

PAUSE_FIRST, PAUSE_MAX = 60.0, 3600.0


@dataclass
class Outages:
    """Its outages so far."""

    pause: float = 0.0
    until: float = 0.0
    """Until when none is told."""
    untold: int = 0
    """Those that ended before they were told."""
    there: bool = False
    told: bool = False
    """Whether the present one was."""
    seen: float = 0.0
    """When there was one last."""

    def lasts(self, now: float, *, long: bool = False) -> str | None:
        """Note that the outage goes on. Return the end of the sentence about it if it is to be told now, else None."""
        if not self.there and now - max(self.until, self.seen) >= self.pause:
            self.pause = 0.0
        self.there, self.seen = True, now
        if self.told or (now < self.until and not long):
            return None
        self.pause = min(max(2 * self.pause, PAUSE_FIRST), PAUSE_MAX)
        self.until = now + self.pause
        also = f", {counted(self.untold, 'time')} more since it was last said" if self.untold else ""
        self.told, self.untold = True, 0
        return also

    def ends(self) -> bool:
        """It is over. Whether that is to be told."""
        told = self.told
        if self.there and not told:
            self.untold += 1
        self.there = self.told = False
        return told
