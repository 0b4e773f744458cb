"""Estimate chain time between observations.

When a timestamp arrives, chain time is at least as late, because timestamps are rounded down and
take time to travel. So the clock uses the largest of the last few offsets. A late estimate is
harmless; the program refuses early transactions.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from aftermath.chain.failures import BadReply
from aftermath.coordinator.errors import CoordinatorError

OBSERVATIONS = 8
_CLOCK_SYSVAR = struct.Struct("<QqQQq")


class ChainClock:
    """Chain time in unix seconds, advanced by `monotonic` (seconds of any steady clock)."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._offsets: deque[float] = deque(maxlen=OBSERVATIONS)

    def observe(self, timestamp: int) -> None:
        """Record a chain timestamp (unix seconds) that has just arrived."""
        self._offsets.append(timestamp - self._monotonic())

    def observe_sysvar(self, data: bytes) -> None:
        """Record the Clock sysvar that has just arrived. Raises BadReply if it is malformed."""
        self.observe(sysvar_time(data))

    def now(self) -> int:
        """Return chain time in unix seconds. Raise CoordinatorError before an observation."""
        if not self._offsets:
            raise CoordinatorError("the run's time is unknown until the run is read")
        return int(max(self._offsets) + self._monotonic())


def sysvar_time(data: bytes) -> int:
    """Return the unix seconds in the Clock sysvar. Raises BadReply if it is malformed."""
    if len(data) != _CLOCK_SYSVAR.size:
        raise BadReply(f"the Clock sysvar has {len(data)} bytes, expected {_CLOCK_SYSVAR.size}")
    return int(_CLOCK_SYSVAR.unpack(data)[4])
