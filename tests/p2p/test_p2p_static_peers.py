"""Test peers whose addresses the user names."""

from pathlib import Path

import pytest

from aftermath.base.errors import UsageError
from aftermath.p2p.discovery import (
    MAX_STATIC_PEERS,
    LocalDirectory,
    StaticPeer,
    StaticPeers,
    Whereabouts,
    addresses_of,
    parse_static_peers,
)
from aftermath.p2p.iroh import open_iroh
from p2p.nodes import identity, join, secret, until

KEY = "ab" * 32


def test_static_peers_list_is_parsed():
    one, two = parse_static_peers(f"{KEY}@10.0.0.1:4800, {'CD' * 32}@[fe80::1]:1")
    assert one == StaticPeer(bytes.fromhex(KEY), "10.0.0.1", 4800)
    assert two == StaticPeer(b"\xcd" * 32, "fe80::1", 1)
    assert parse_static_peers(f"{KEY}@machine-2.local:65535")[0].host == "machine-2.local"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        KEY,
        f"{KEY}@host",
        f"{KEY}@host:0",
        f"{KEY}@host:65536",
        f"{KEY}@:4800",
        f"{KEY}@a b:4800",
        f"{KEY[2:]}@host:4800",
        f"{KEY}@host:4800,",
        f"{KEY}@host:4800 {KEY}@host:4800",
        f"{'zz' * 32}@host:4800",
        f"{KEY}@http://host:4800",
    ],
)
def test_invalid_static_peer_is_refused_with_fix(wrong: str):
    with pytest.raises(UsageError) as refused:
        parse_static_peers(wrong)
    assert "KEY@HOST:PORT" in refused.value.fix


def test_too_many_static_peers_are_refused():
    with pytest.raises(UsageError, match="256 peers"):
        parse_static_peers(",".join([f"{KEY}@10.0.0.1:4800"] * (MAX_STATIC_PEERS + 1)))


def test_static_peer_addresses_are_grouped_and_resolved():
    addresses = addresses_of(
        parse_static_peers(f"{KEY}@10.0.0.1:4800,{KEY}@10.0.0.2:4801,{'cd' * 32}@localhost:5")
    )
    assert addresses[bytes.fromhex(KEY)] == ("10.0.0.1:4800", "10.0.0.2:4801")
    assert set(addresses[b"\xcd" * 32]) & {"127.0.0.1:5", "[::1]:5"}


def test_unknown_static_peer_host_is_refused():
    with pytest.raises(UsageError, match=r"cannot resolve the host 'no-such-host\.invalid'"):
        addresses_of(parse_static_peers(f"{KEY}@no-such-host.invalid:4800"))


def test_named_address_precedes_directory_address(tmp_path: Path):
    other = LocalDirectory(tmp_path / "peers", identity(1))
    directory = StaticPeers(
        {identity(1): ("10.0.0.1:4800",), identity(3): ("10.0.0.3:4800",)}, other
    )
    directory.prepare()
    directory.write(Whereabouts(("127.0.0.1:9",), "https://relay.example.org"))
    assert directory.read(identity(1)) == Whereabouts(
        ("10.0.0.1:4800", "127.0.0.1:9"), "https://relay.example.org"
    )
    assert directory.read(identity(2)) is None
    assert directory.read(identity(3)) == Whereabouts(("10.0.0.3:4800",))
    directory.remove()
    assert directory.read(identity(1)) == Whereabouts(("10.0.0.1:4800",))


async def test_peers_connect_if_one_names_the_other(tmp_path: Path):
    common = {"bind_host": "127.0.0.1", "relay": "disabled", "discovery": "local"}
    first = await open_iroh(secret(1), discovery_dir=tmp_path / "one", **common)
    address = next(one for one in first._endpoint.bound_sockets() if one.startswith("127."))
    second = await open_iroh(
        secret(2), discovery_dir=tmp_path / "two", static_peers={identity(1): (address,)}, **common
    )
    try:
        join([first, second])
        await until(lambda: identity(1) in second.reachable() and identity(2) in first.reachable())
    finally:
        await first.close()
        await second.close()
