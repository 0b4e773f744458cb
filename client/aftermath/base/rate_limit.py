"""Limit how often things happen: backoff, token buckets, eviction of connections."""

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
    """Return the seconds of a `Retry-After` header, at most `longest`; 0 without one, or for one
    that is a date.
    """
    value = (header or "").strip()
    return (
        min(float(value), longest)
        if value.isascii() and value.isdecimal() and len(value) < 20
        else 0.0
    )


class Backoff:
    """Exponential backoff of one repeated action."""

    def __init__(self, first: float, longest: float) -> None:
        """Start at `first` seconds and stop growing at `longest` seconds."""
        self._first = first
        self._longest = longest
        self._tries = 0

    def next(self) -> float:
        """Return the seconds to wait after one more failed try."""
        self._tries += 1
        return doubled(self._tries, self._first, self._longest)

    @property
    def at_longest(self) -> bool:
        """Return whether the next wait is the longest one."""
        return doubled(self._tries + 1, self._first, self._longest) >= self._longest


class TokenBucket:
    """A token bucket: `burst` tokens at once, `rate` tokens per second. `clock` returns seconds."""

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
        """Tokens after the last one was taken. Negative if it is not yet paid for."""
        return self._tokens

    def next_in(self) -> float:
        """Return the seconds until a token is available."""
        self._refill()
        return max(0.0, (1 - self._tokens) / self._rate)

    def take(self) -> float:
        """Take one token, and return the seconds until it is paid for."""
        self._refill()
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)

    def try_take(self) -> bool:
        """Take one token if available, and return whether it was."""
        self._refill()
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


T = TypeVar("T")


def peer_network(transport: asyncio.BaseTransport | None) -> str:
    """Return the peer's IP address, or its /64 network for IPv6: a host with one address of a /64
    can use all of them. Empty without a peer address.
    """
    peer = transport.get_extra_info("peername") if transport is not None else None
    return network_of(str(peer[0])) if isinstance(peer, tuple) else ""


def busiest_address(addresses: Iterable[str]) -> str:
    """Return the address that occurs most often. If there are several, return the first."""
    return max(Counter(addresses).items(), key=lambda item: item[1])[0]


def connection_to_close(waiting: Mapping[T, str]) -> T:
    """Return the connection to close: the oldest one of the address with the most connections.
    `waiting` lists the oldest first.
    """
    busiest = busiest_address(waiting.values())
    return next(connection for connection, address in waiting.items() if address == busiest)


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
