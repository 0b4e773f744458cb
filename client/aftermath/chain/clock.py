"""Estimate chain time between observations.

A timestamp is a lower bound of chain time when it arrives: it is rounded down and it travelled. So
the largest of the last few offsets is used. A late estimate is harmless; the program refuses
transactions that are early.
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
    """Unix seconds of the chain, carried on by `monotonic` (seconds of any steady clock)."""

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
        """Chain time in unix seconds. Raises CoordinatorError before the first observation."""
        if not self._offsets:
            raise CoordinatorError("the run's time is not known before the run was read")
        return int(max(self._offsets) + self._monotonic())


def sysvar_time(data: bytes) -> int:
    """Return the unix seconds in the Clock sysvar. Raises BadReply if it is malformed."""
    if len(data) != _CLOCK_SYSVAR.size:
        raise BadReply(f"the Clock sysvar has {len(data)} bytes, expected {_CLOCK_SYSVAR.size}")
    return int(_CLOCK_SYSVAR.unpack(data)[4])
