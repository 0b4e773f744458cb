"""Pauses between tries of what others have to make possible: each twice the last, up to a longest."""

from __future__ import annotations

_MOST_DOUBLINGS = 16


def doubled(tries: int, first: float, longest: float) -> float:
    """Return the seconds to wait after `tries` failed tries in a row (from 1 on)."""
    return min(first * 2.0 ** min(tries - 1, _MOST_DOUBLINGS), longest)


def retry_after(header: str | None, longest: float) -> float:
    """Return the seconds of a `Retry-After` header, at most `longest`; 0 without one, or for one that is a date."""
    value = (header or "").strip()
    return min(float(value), longest) if value.isascii() and value.isdecimal() and len(value) < 20 else 0.0


class Backoff:
    """The pauses of one piece of work."""

    def __init__(self, first: float, longest: float) -> None:
        """Both in seconds."""
        self._first, self._longest, self._tries = first, longest, 0

    def next(self) -> float:
        """The seconds to wait now that a try has failed."""
        self._tries += 1
        return doubled(self._tries, self._first, self._longest)

    @property
    def at_longest(self) -> bool:
        """Whether the next pause is as long as any will be."""
        return doubled(self._tries + 1, self._first, self._longest) >= self._longest
