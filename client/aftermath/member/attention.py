"""Whether this member was held up: its process stopped, its machine overloaded.

Choices: it looks at the clock twice a second, and a look that comes seconds late tells that nothing was heard or done
meanwhile. Whoever asks looks too, because timers that are overdue fire in any order.
"""

from __future__ import annotations

from aftermath.coordinator.ports import Clock

_EVERY = 0.5  # seconds
_LATE = 3.0  # seconds


class Attention:
    """Knows when this member last came back from doing nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked, self._woke = float("inf"), float("-inf")

    def woke(self) -> float:
        """The newest moment (on the clock) at which this member went on after having been held up; -inf for never."""
        now = self._clock.monotonic()
        if now - self._looked > _EVERY + _LATE:
            self._woke = now
        self._looked = now
        return self._woke

    def held_up_since(self, moment: float) -> bool:
        """Whether it went on only after that moment (on the clock), so that what has passed since shows nothing."""
        return self.woke() >= moment

    async def watch(self) -> None:
        """Look, for ever."""
        while True:
            self.woke()
            await self._clock.sleep(_EVERY)
