"""Rate limit for outage reports, so that a flapping node does not fill the log.

The first outage is reported at once. The pause after each report doubles from one minute to one
hour, and resets after an equal time without an outage. The next report counts the skipped ones. All
times are seconds of the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.base.text import counted

PAUSE_FIRST = 60.0
PAUSE_MAX = 3600.0


@dataclass
class Outages:
    """Counts the outages of one node or connection, and limits their log lines."""

    pause: float = 0.0
    silent_until: float = 0.0
    """Time until which no outage is reported."""
    unreported: int = 0
    """Outages that ended before they were reported."""
    is_out: bool = False
    is_reported: bool = False
    """Whether the present outage was reported."""
    seen_at: float = 0.0
    """Time of the last outage."""

    def lasts(self, now: float, *, long: bool = False) -> str | None:
        """Record an outage. Return the end of its log line, or None if it must not be logged.

        A `long` outage is logged even during a pause.
        """
        if not self.is_out and now - max(self.silent_until, self.seen_at) >= self.pause:
            self.pause = 0.0
        self.is_out = True
        self.seen_at = now
        if self.is_reported or (now < self.silent_until and not long):
            return None
        self.pause = min(max(2 * self.pause, PAUSE_FIRST), PAUSE_MAX)
        self.silent_until = now + self.pause
        repeat_note = (
            f", {counted(self.unreported, 'time')} more since the last report"
            if self.unreported
            else ""
        )
        self.is_reported = True
        self.unreported = 0
        return repeat_note

    def ends(self) -> bool:
        """Record the end of an outage. Return whether to log it: only if the outage was logged."""
        was_reported = self.is_reported
        if self.is_out and not was_reported:
            self.unreported += 1
        self.is_out = False
        self.is_reported = False
        return was_reported
