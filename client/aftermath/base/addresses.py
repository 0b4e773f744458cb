"""Decide which network addresses a member connects to for a run.

A run's owner writes the addresses of its data, and documents and redirects name more. Without a rule an owner could
have a member read services of its own network, and find what it read in the results that the member sends.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

from aftermath.base.errors import Unsuitable

Permits = Callable[[str], bool]
"""Whether a connection to an IP address is allowed."""

_CLOUD_SERVICE = IPv4Address("168.63.129.16")
"""Azure's services of each virtual machine: an address of the internet that only the machine itself reaches."""
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
ALLOW = "--allow-private-network"


def any_address(address: str) -> bool:
    """Allow every address. For addresses that the user wrote."""
    return True


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet: not of this machine, its network, or a network's own services."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return found.is_global and not found.is_multicast and found != _CLOUD_SERVICE
    inner = _embedded(found)
    if inner is not None:
        return is_public(str(inner))
    return found in _GLOBAL_UNICAST and found.is_global


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an IPv6 address stands for."""
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def permitted(host: str, found: Sequence[tuple[Any, ...]], permits: Permits) -> list[str]:
    """Return the addresses of a host, as `getaddrinfo` gives them, that are allowed. Raises Unsuitable without any."""
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
    allowed = [address for address in addresses if permits(address)]
    if addresses and not allowed:
        where = host if host in addresses else f"{host} ({addresses[0]})"
        raise Unsuitable(
            f"the run's data is at {where}, an address of this machine or of a private network",
            f"Pass {ALLOW} if the run's owner may reach the services of this machine's network",
        )
    return allowed


def connected(host: str, port: int, timeout: float, permits: Permits) -> socket.socket:
    """Return a TCP connection to a host, at one of its allowed addresses. Raises OSError, Unsuitable."""
    error = OSError(f"{host} has no address")
    addresses = permitted(host, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM), permits)
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout / len(addresses))
        except OSError as caught:
            error = caught
    raise error
