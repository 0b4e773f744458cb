"""Tests of the addresses that a run connects to."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from aftermath.base.allowed_locations import connected, is_public, permitted
from aftermath.base.errors import Unsuitable


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"]
)
def test_internet_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
        ),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "198.18.0.1", "240.0.0.1"),
        *(
            "::1",
            "::",
            "fe80::1%eth0",
            "fc00::1",
            "fd12::1",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "::127.0.0.1",
        ),
        *("168.63.129.16", "::ffff:168.63.129.16", "64:ff9b::168.63.129.16"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2001::1",
        ),
    ],
)
def test_address_of_private_network_is_not_public(address: str) -> None:
    assert not is_public(address)


def answers(*addresses: str) -> list[tuple[Any, ...]]:
    """Return what `getaddrinfo` returns for a name with these addresses."""
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]


def test_name_with_mixed_addresses_keeps_public_ones() -> None:
    assert permitted("tokens.example", answers("10.0.0.1", "8.8.8.8", "8.8.8.8"), is_public) == [
        "8.8.8.8"
    ]


def test_name_with_private_address_is_refused() -> None:
    with pytest.raises(
        Unsuitable, match=r"tokens\.example \(10\.0\.0\.1\)[\s\S]*--allow-private-network"
    ):
        permitted("tokens.example", answers("10.0.0.1"), is_public)


def test_connection_to_loopback_is_refused_before_it_is_made() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with pytest.raises(Unsuitable, match=r"127\.0\.0\.1"):
            connected("127.0.0.1", server.getsockname()[1], 1.0, is_public)
        with pytest.raises(BlockingIOError):
            server.accept()
