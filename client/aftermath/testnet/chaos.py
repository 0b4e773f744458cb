"""The schedule of random kills in a local testnet."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

BACK_SECONDS = 3.0
"""Seconds until a killed client is restarted."""


@dataclass
class ChaosSchedule:
    """Kills N of the allowed clients every few seconds, from the first trained step on.

    The order is drawn from a seed, so the same plan kills the same clients. A client is killed only
    if it has trained since its last start. Otherwise, on a slow machine, a restarting client would
    never get to train.
    """

    number: int
    interval: float
    allowed: tuple[int, ...]
    """The clients that may be killed, by their numbers."""
    done: int = 0
    _due: float | None = None
    _draw: random.Random = field(default_factory=lambda: random.Random(0))

    def now(self, at: float, training: Sequence[int]) -> list[int]:
        """Return the clients to kill at `at` seconds, among those that have trained since their
        last start.
        """
        if not self.number:
            return []
        if self._due is None:
            self._due = at + self.interval
        if at < self._due:
            return []
        self._due += self.interval
        candidates = sorted(set(self.allowed) & set(training))
        victims = self._draw.sample(candidates, min(self.number, len(candidates)))
        self.done += len(victims)
        return victims
