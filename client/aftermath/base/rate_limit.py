"""Pauses between tries of what others have to make possible: each twice the last, up to a longest."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

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


T = TypeVar("T")


def place(transport: asyncio.BaseTransport | None) -> str:
    """Return the peer's address; for IPv6 its /64, since a host with one address there has all of
    them.
    """
    peer = transport.get_extra_info("peername") if transport is not None else None
    return network_of(str(peer[0])) if isinstance(peer, tuple) else ""


def fullest(places: Iterable[str]) -> str:
    """Return the address that occurs most often, of several the first."""
    return max(Counter(places).items(), key=lambda item: item[1])[0]


def makes_room(waiting: Mapping[T, str]) -> T:
    """Return the connection that gives way: the oldest of the address with most. `waiting` has the oldest first."""
    most = fullest(waiting.values())
    return next(one for one, where in waiting.items() if where == most)


def network_of(host: str) -> str:
    """Return the part of an address that all addresses of its host share."""
    host = host.partition("%")[0]
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is None:
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
