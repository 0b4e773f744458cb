"""What a member does at the first signal: it leaves, saves first, or asks for a second Ctrl-C.

Only the last member that has a part of the model is asked, and only where a person can answer: a service that gets
SIGTERM leaves at once.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from aftermath.watch import kinds
from aftermath.watch.events import Events

if TYPE_CHECKING:
    from aftermath.member.member import Member

_SAVE_SECONDS = 60.0


class Departure:
    """Decides what a signal to one member does; `can_ask`: whether a person can press Ctrl-C again."""

    def __init__(self, events: Events, *, can_ask: bool) -> None:
        self.member: Member | None = None
        """The member, once there is one."""
        self._events, self._can_ask = events, can_ask
        self._asked = False

    def on_signal(self, number: signal.Signals) -> float | None:
        """Return the seconds that saving may take, or None after a warning that asks for another Ctrl-C."""
        stake = self.member.stake() if self.member is not None else None
        if self.member is not None and stake is not None and stake.saves:
            self._events.emit(kinds.Leaving(saves=True))
            self.member.stops()
            return _SAVE_SECONDS
        if stake is not None and not self._asked:
            asks = self._can_ask and number == signal.SIGINT
            fix = "Press Ctrl-C again to leave and lose these steps." if asks else "These steps are lost now."
            if self._can_ask:
                fix += " Next time pass --matformer-tier 0 --checkpoint-dir DIR to save the model on exit"
            self._events.emit(kinds.Warning(message=f"{stake.words()}\n{fix}"))
            if asks:
                self._asked = True
                return None
        self._events.emit(kinds.Leaving())
        return 0.0


def is_a_person_there() -> bool:
    """Return whether standard input and output are a terminal."""
    try:
        return sys.stdin.isatty() and sys.stdout.isatty()
    except (AttributeError, ValueError):  # it is closed, or not there
        return False
