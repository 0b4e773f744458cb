"""Which connection gives way where there are too many: the oldest of the address that has most."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

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
