"""Chain time between the moments it is observed.

Decided: a timestamp seen on chain is a lower bound of chain time at the moment it arrives (it is a
whole second, and it travelled), so the best of the last few observations is the largest. Being a
little late is harmless where being early is not: the program refuses what is not yet due.
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
        """A timestamp that has just arrived from the chain."""
        self._offsets.append(timestamp - self._monotonic())

    def observe_sysvar(self, data: bytes) -> None:
        """The bytes of the Clock sysvar that have just arrived. Raises BadReply if they are not
        that.
        """
        self.observe(sysvar_time(data))

    def now(self) -> int:
        """Chain time in unix seconds. Raises CoordinatorError before the first observation."""
        if not self._offsets:
            raise CoordinatorError("the run's time is not known before the run was read")
        return int(max(self._offsets) + self._monotonic())


def sysvar_time(data: bytes) -> int:
    """Unix seconds in the bytes of the Clock sysvar. Raises BadReply if they are not that."""
    if len(data) != _CLOCK_SYSVAR.size:
        raise BadReply(f"the Clock sysvar has {len(data)} bytes, expected {_CLOCK_SYSVAR.size}")
    return int(_CLOCK_SYSVAR.unpack(data)[4])
