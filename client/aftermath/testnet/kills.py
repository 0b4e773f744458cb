"""Which clients are killed, and when: drawn from a seed, so that the same plan meets the same clients again.

Decided: only a client that has trained since it was started is killed. One that is still restarting could
never return on a machine that starts it more slowly than it is killed, and a crash in training is what is tried.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

BACK_SECONDS = 3.0
"""How long a killed client stays away."""


@dataclass
class Kills:
    """Kills N of some clients every few seconds, from the first trained step on."""

    number: int
    interval: float
    allowed: tuple[int, ...]
    """The clients that may be killed, by their numbers."""
    done: int = 0
    _due: float | None = None
    _draw: random.Random = field(default_factory=lambda: random.Random(0))

    def now(self, at: float, training: Sequence[int]) -> list[int]:
        """Whom to kill at this moment, in seconds of any clock, of those that have trained since they were started."""
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
