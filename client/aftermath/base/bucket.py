"""Token bucket: how often a peer or a node may do something that costs us."""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """`burst` at once, `rate` a second; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float], rate: float, burst: float) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = clock()

    def _refill(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now

    @property
    def left(self) -> float:
        """Tokens after the last one was taken; less than none if it is not paid for yet."""
        return self._tokens

    def next_in(self) -> float:
        """Seconds until there is a token to spare."""
        self._refill()
        return max(0.0, (1 - self._tokens) / self._rate)

    def take(self) -> float:
        """Take one token; the seconds to wait until it is paid for."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def spare(self) -> bool:
        """Take one token if there is one; False if not."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
