"""Decide what the first signal does: leave, save and leave, or ask for a second Ctrl-C.

Only the last holder of a part of the model asks, and only at a terminal. After SIGTERM or SIGHUP
it leaves at once, or after one attempt to save.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.stake import SAVE_SECONDS

if TYPE_CHECKING:
    from aftermath.member.member import Member
    from aftermath.member.stake import Stake


class Departure:
    """Decides what a signal to one member does."""

    def __init__(
        self, events: Events, *, can_ask: bool, ask: Callable[[str], None] = lambda _: None
    ) -> None:
        """`can_ask`: whether a person can press Ctrl-C again.

        `ask` shows the question where events do not.
        """
        self.member: Member | None = None
        """The member, once there is one."""
        self.stay: Callable[[], None] = lambda: None
        """Called when a member that was stopped stays until another signal."""
        self.lost: Stake | None = None
        """The training steps that are lost if the member leaves now."""
        self._events = events
        self._can_ask = can_ask
        self._ask = ask
        self._may_ask = self._has_asked = False

    def on_signal(self, number: signal.Signals) -> float | None:
        """Return the seconds that saving may take, or None after a warning that asks for another
        Ctrl-C.
        """
        stake = self.member.stake() if self.member is not None else None
        self._may_ask = self._can_ask and number == signal.SIGINT
        if self.member is not None and stake is not None and stake.saves and not self._has_asked:
            self.lost = stake
            self._events.emit(event_types.Leaving(saves=True))
            self.member.stops(self._save_ended)
            return SAVE_SECONDS
        if stake is not None and not self._has_asked:
            how = "Next time pass --matformer-tier 0 --checkpoint-dir DIR to save the model on exit"
            self._warn(stake, how if self._can_ask else "")
            if self._has_asked:
                return None
        if self.member is not None and stake is None:
            self.member.stops(self._save_ended)  # it may still wait for the epoch that it resumed
        self.lost = stake
        self._events.emit(event_types.Leaving())
        return 0.0

    def _save_ended(self, saved: bool) -> bool:
        """Handle the end of a save. Return whether the member stays to save again."""
        if saved or self.lost is None:
            self.lost = self._lost_despite_copy() if saved else None
            return False
        if not self._has_asked:
            how = "Or free some disk space: this member has stopped training and retries the save"
            self._warn(self.lost, how if self._may_ask else "")
            if self._has_asked:
                self.stay()
        return self._has_asked

    def _lost_despite_copy(self) -> Stake | None:
        """Return what the run loses although this member saved a copy, or None."""
        stake = self.member.stake() if self.member is not None else None
        return replace(stake, is_copied=True) if stake is not None and stake.goes_back else None

    def _warn(self, stake: Stake, extra: str) -> None:
        """Warn about the steps that are lost, and ask for another Ctrl-C if a person is there."""
        self._has_asked = self._may_ask
        message = f"{stake.loss()}\n{extra}".rstrip()
        if self._may_ask:
            fix = "Press Ctrl-C again to leave and lose these steps."
            message = f"{stake.sentence()}\n{fix} {extra}".rstrip()
        self._events.emit(event_types.Warning(message=message))
        if self._may_ask:
            self._ask(message)


def is_a_person_there() -> bool:
    """Return whether someone can press Ctrl-C: standard input is a terminal."""
    return _is_terminal(sys.stdin)


def ask_on_stderr(question: str) -> None:
    """Show a question on standard error, unless standard output shows it on a terminal."""
    if not _is_terminal(sys.stdout):
        print(question, file=sys.stderr, flush=True)


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # the stream is closed, or there is none
        return False
