"""The duration of a member's shares, and a warning if its machine is too slow for the run.

It compares the member's own work in a round (apply and train) with the time limit. It warns once
per epoch, because the next epoch may assign smaller shares. While consecutive shares are abandoned,
it warns less and less often.
"""

from __future__ import annotations

from aftermath.base.text import counted
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.replica.replica import weight_of

WHAT_HELPS = (
    "Use a smaller model (a higher --matformer-tier), another --device, more --threads or another "
    "--micro-batch-size; or ask the run's owner for longer rounds (max_round_train_time)"
)

_SAY_AT = 3
"""Consecutive abandoned shares before the warning repeats. The number grows fourfold each time."""


class Throughput:
    """Times one member's shares of an epoch. `limit`: seconds per share. `weight`: its speed."""

    def __init__(self, events: Events, limit: float, weight: int) -> None:
        self._events = events
        self._limit = limit
        self._applying = 0.0
        self._warned = False
        self._given_up = 0
        self._say_at = _SAY_AT
        self.weight = weight
        """Sequences per minute, as of the newest share. An abandoned share can only lower it."""

    def applied(self, seconds: float) -> None:
        """Record the seconds of applying a round's results, without waiting for them."""
        self._applying = seconds

    def took(self, sequences: int, seconds: float, *, done: bool) -> None:
        """Record the seconds of a share of `sequences`. `done` is false if it was abandoned."""
        measured = weight_of(sequences, seconds)
        self.weight = measured if done else min(self.weight, measured)
        self._given_up = 0 if done else self._given_up + 1
        if self._given_up >= self._say_at:
            self._say_at *= 4
            self._warn(
                f"{counted(self._given_up, 'share')} in a row were late; each may take {self._limit:.0f} s"
            )
            return
        if self._applying + seconds <= self._limit or self._warned:
            return
        took = f"took {'' if done else 'more than '}{seconds:.0f} s"
        if self._applying >= 1:
            took += f" and applying a round's results {self._applying:.0f} s"
        self._warn(
            f"{counted(sequences, 'sequence')} {took}, but a round leaves at most {self._limit:.0f} s for them"
        )

    def allowance_used(self, seconds: float) -> None:
        """Warn that other members no longer wait for this member's results in this epoch."""
        if not self._warned:
            self._warn(
                f"the others waited {seconds:.0f} s for its results in this epoch and no longer wait"
            )

    def _warn(self, why: str) -> None:
        self._warned = True
        self._events.emit(
            event_types.Warning(
                message=f"this machine is too slow for its share of the rounds: {why}. {WHAT_HELPS}",
                until="state",
            )
        )
