"""How far a run is and how long it will take: "step 40 of 120, 2 min left".

Decided: all of it comes from what the chain says (steps trained, steps in all, and since when), so every member of a
run shows the same; the pace is that of the last steps, with the pauses between epochs in it, because they come again.
"""

from __future__ import annotations

from collections import deque

from aftermath.watch import kinds

_WINDOW = 100  # steps whose pace counts
_LEAST = 3  # steps that must have been seen before anything is foretold


class Progress:
    """Follows the events State, Round and Finished, which carry steps and chain time (`since`)."""

    def __init__(self) -> None:
        self.step = self.total = 0
        self._seen: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def take(self, event: kinds.Event) -> None:
        """Learn from an event; those that say nothing of progress are ignored."""
        if isinstance(event, kinds.State):
            self._reach(event.step, paused=event.state == "PAUSED")
            self.total = event.total_steps
        elif isinstance(event, kinds.Round):
            step = event.step - 1  # a round is about the step that it trains
            self._reach(step, paused=False)
            if not self._seen or step > self._seen[-1][1]:
                self._seen.append((event.since, step))
        elif isinstance(event, kinds.Finished):
            self._reach(event.step, paused=False)

    def _reach(self, step: int, *, paused: bool) -> None:
        if paused or step < self.step:
            self._seen.clear()  # time that says nothing about the steps to come
        self.step = step

    @property
    def left(self) -> float | None:
        """Seconds until the last step is trained; None if they cannot be told yet."""
        if not self._seen or self._seen[-1][1] - self._seen[0][1] < _LEAST:
            return None
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (self.total - self.step) * (last_at - first_at) / (last - first)

    def words(self) -> str:
        """It all in a few words."""
        if not self.total:
            return "no step yet"
        left = self.left if self.step < self.total else None
        return f"step {self.step:,} of {self.total:,}" + (f", {span(left)} left" if left is not None else "")


def span(seconds: float) -> str:
    """A time that passes, as a person says it."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours = round(seconds / 3600)
    if hours < 5:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{hours} h" if hours < 48 else f"{round(seconds / 86400)} days"
