"""Handle ending signals: the first leaves within a timeout, the third ends at once.

`Departure` decides what the first signal does: leave, save and leave, or ask for a second Ctrl-C.
Only a member whose leaving loses trained steps asks, and only at a terminal. After SIGTERM or
SIGHUP it leaves at once, or after one attempt to save.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TextIO

from aftermath.base.signals import on_signals
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.stake import SAVE_SECONDS

if TYPE_CHECKING:
    from aftermath.member.member import Member
    from aftermath.member.stake import Stake


EXIT_SECONDS = 1.7  # documented as 2 s; the process needs the rest to end
CLOSE_SECONDS = 0.4  # part of EXIT_SECONDS for closing connections


class Interrupts:
    """Cancels one coroutine at a signal, with a timeout for its cleanup.

    The second signal does nothing, because people press Ctrl-C twice. If the member answers the
    first Ctrl-C with a question, the next one counts as the first. One timeout covers leaving the
    run and closing, because both may hang without a network.
    """

    def __init__(self, on_signal: Callable[[signal.Signals], float | None] = lambda _: 0.0) -> None:
        """Call `on_signal` at the first signal.

        `on_signal` returns the seconds that the work may take to save before it leaves. None
        ignores the signal, because the user has to confirm it with another one.
        """
        self._on_signal = on_signal
        self._work: asyncio.Future[None] | None = None
        self._signals = 0
        self._end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._over = asyncio.Event()

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it is done, or until the timeout after a signal.

        Raises what `work` raised before the timeout. `work` calls `leaving` before its cleanup.
        """
        task = self._work = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        try:
            with on_signals(self._signalled):
                await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
                if task.done() and not task.cancelled():
                    task.result()
        finally:
            over.cancel()
            task.cancel()

    def leaving(self) -> float:
        """Begin the cleanup, which signals do not cancel. Return the seconds for leaving."""
        self._work = None
        end = self._end or asyncio.get_running_loop().time() + EXIT_SECONDS
        return end - CLOSE_SECONDS - asyncio.get_running_loop().time()

    def saved(self) -> None:
        """End the time for saving after a signal. At most `EXIT_SECONDS` remain."""
        if self._signals:
            remaining = self._end - asyncio.get_running_loop().time()
            self._ends_in(min(EXIT_SECONDS, remaining))

    def saves_for(self, seconds: float) -> None:
        """Extend the timeout so that the work has `seconds` to save now."""
        if self._signals:
            self._ends_in(EXIT_SECONDS + seconds)

    def wait_for_another(self) -> None:
        """Stop the timeout and let the work continue. The next signal counts as the first."""
        self._signals = 0
        self._end = 0.0
        if self._timer is not None:
            self._timer.cancel()

    def _ends_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._end = loop.time() + seconds
        self._timer = loop.call_at(self._end, self._over.set)

    def _signalled(self, number: signal.Signals) -> None:
        if not self._signals:
            seconds = self._on_signal(number)
            if seconds is None:
                return
            self._ends_in(EXIT_SECONDS + seconds)
        self._signals += 1
        if self._signals == 1:
            if self._work is not None:
                self._work.cancel()
        elif self._signals > 2:
            self._over.set()


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
        self.saves_for: Callable[[float], None] = lambda seconds: None
        """Called when a save begins after the signal, with the seconds that it may take."""
        self.lost: Stake | None = None
        """The training steps that are lost if the member leaves now."""
        self._events = events
        self._can_ask = can_ask
        self._ask = ask
        self._may_ask = self._has_asked = False
        self._has_warned_of_others = False

    def on_signal(self, number: signal.Signals) -> float | None:
        """Return the seconds that saving may take, or None after a warning that asks for another
        Ctrl-C.
        """
        stake = self.member.stake() if self.member is not None else None
        self._may_ask = self._can_ask and number == signal.SIGINT
        warns_of_others = stake is not None and (
            # Without a terminal it may still become the last member, and then keeps its seat.
            stake.costs_others or (stake.saves_if_it_stays and self._may_ask)
        )
        if stake is not None and warns_of_others and not self._has_warned_of_others:
            self._has_warned_of_others = True
            self._warn(stake, "It saves a copy then." if stake.saves else "")
            if self._may_ask:
                return None
        if self.member is not None and stake is not None and stake.saves:
            self.lost = stake
            self._events.emit(event_types.Leaving(saves=True))
            if not self._has_asked:  # else the member tries once more to save
                self.member.stops(self._save_ended, self._save_begins)
            return SAVE_SECONDS
        if stake is not None and not stake.reason and not self._has_asked:
            how = "Next time pass --matformer-tier 0 --checkpoint-dir DIR to save the model on exit"
            self._warn(stake, how if self._can_ask else "")
            self._has_asked = self._may_ask
            if self._has_asked:
                return None
        if self.member is not None and stake is None:
            # It may still wait for the epoch that it resumed, or be the last one in a moment.
            self.member.stops(self._save_ended, self._save_begins)
        self.lost = stake
        self._events.emit(event_types.Leaving())
        return 0.0

    def _save_begins(self, stake: Stake) -> None:
        """Announce the save of a member that became the last one after the signal."""
        if self.lost is None:
            self.lost = stake
            self._events.emit(event_types.Leaving(saves=True))
            self.saves_for(SAVE_SECONDS)

    def _save_ended(self, saved: bool) -> bool:
        """Handle the end of a save. Return whether the member stays to save again."""
        if saved or self.lost is None:
            self.lost = self._lost_despite_copy() if saved else None
            return False
        if not self._has_asked:
            how = "Or free some disk space: this member has stopped training and retries the save"
            self._warn(self.lost, how if self._may_ask else "")
            self._has_asked = self._may_ask
            if self._has_asked:
                self.stay()
        return self._has_asked

    def _lost_despite_copy(self) -> Stake | None:
        """Return what the run loses although this member saved a copy, or None."""
        stake = self.member.stake() if self.member is not None else None
        return stake if stake is not None and stake.goes_back else None

    def _warn(self, stake: Stake, extra: str) -> None:
        """Warn about the steps that are lost, and ask for another Ctrl-C if a person is there."""
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
