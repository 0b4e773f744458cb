"""How long a member's shares take, and telling it when its machine is too slow for the run.

Choices: what counts is the member's own work of a round, applying and training, against the time it has for that;
it is said once per epoch, at the first share that took longer, or once the others wait for it no longer
(`lateness`), because the next epoch may deal out smaller ones. It is said again, ever more rarely, while shares are
given up one after the other.
"""

from __future__ import annotations

from aftermath.base.counted import counted
from aftermath.replica.replica import weight_of
from aftermath.watch import kinds
from aftermath.watch.events import Events

WHAT_HELPS = (
    "What helps: a smaller model (a higher --matformer-tier), another --device, more --threads, another "
    "--micro-batch-size; or the owner of the run gives rounds more time (max_round_train_time)"
)

_SAY_AT = 3
"""Shares given up in a row after which the warning is repeated; the next time after four times as many."""


class ShareTime:
    """Watches one member's shares of one epoch; `limit`: seconds it has for one, `weight`: what it has declared."""

    def __init__(self, events: Events, limit: float, weight: int) -> None:
        self._events, self._limit = events, limit
        self._applying = 0.0
        self._told = False
        self._given_up = 0
        self._say_at = _SAY_AT
        self.weight = weight
        """Sequences per minute, as the newest share has shown them; one that was given up can only show that they are
        fewer.
        """

    def applied(self, seconds: float) -> None:
        """Applying the results of a round took that long, waiting for them apart."""
        self._applying = seconds

    def took(self, sequences: int, seconds: float, *, done: bool) -> None:
        """A share of so many sequences took that long, or was given up after it (`done` is false then)."""
        shown = weight_of(sequences, seconds)
        self.weight = shown if done else min(self.weight, shown)
        self._given_up = 0 if done else self._given_up + 1
        if self._given_up >= self._say_at:
            self._say_at *= 4
            self._tell(f"{counted(self._given_up, 'share')} in a row came too late, with {self._limit:.0f} s for each")
            return
        if self._applying + seconds <= self._limit or self._told:
            return
        took = f"took {'' if done else 'more than '}{seconds:.0f} s"
        if self._applying >= 1:
            took += f" and applying a round's results {self._applying:.0f} s"
        self._tell(
            f"{counted(sequences, 'sequence')} {took}; a round leaves {self._limit:.0f} s for it at most, so the work "
            "comes too late"
        )

    def waited_for_enough(self, seconds: float) -> None:
        """The others have waited so long for this member's results in this epoch, and do no longer."""
        if not self._told:
            self._tell(f"the others have waited for its results for {seconds:.0f} s in this epoch, and do no longer")

    def _tell(self, why: str) -> None:
        self._told = True
        self._events.emit(
            kinds.Warning(
                message=f"this machine is too slow for its share of the rounds: {why}. {WHAT_HELPS}",
                until="state",
            )
        )
