"""Detects that this member's process was suspended or starved.

It reads the clock twice a second. If a reading is seconds late, the process did not run meanwhile.
Callers read the clock too, because overdue timers fire in any order.
"""

from __future__ import annotations

from aftermath.coordinator.ports import Clock

_EVERY = 0.5  # seconds
_LATE = 3.0  # seconds


class StallDetector:
    """Knows when this member last resumed after a stall."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._looked = float("inf")
        self._woke = float("-inf")

    def woke(self) -> float:
        """Return the last moment (on the clock) at which this member resumed after a stall; -inf
        for never.
        """
        now = self._clock.monotonic()
        if now - self._looked > _EVERY + _LATE:
            self._woke = now
        self._looked = now
        return self._woke

    def held_up_since(self, moment: float) -> bool:
        """Return whether the process stalled after `moment`: silence since then proves nothing."""
        return self.woke() >= moment

    async def watch(self) -> None:
        """Poll until cancelled."""
        while True:
            self.woke()
            await self._clock.sleep(_EVERY)
