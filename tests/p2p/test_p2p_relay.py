"""Test a user's own relay: which URLs are accepted, and that an endpoint uses the relay."""

import asyncio
from pathlib import Path

import pytest

from aftermath.base.errors import UsageError
from aftermath.p2p.discovery import LocalDirectory, Whereabouts
from aftermath.p2p.iroh import open_iroh, whereabouts
from aftermath.p2p.relay import relay_named
from p2p.nodes import content, identity, join, secret, until
from p2p.real_relay import real_relay


class OnlyRelay:
    """A directory that names only the relay of each peer."""

    def __init__(self, inner: LocalDirectory, relay: str) -> None:
        self._inner = inner
        self._relay = relay
        self.prepare = inner.prepare
        self.remove = inner.remove

    def write(self, whereabouts: Whereabouts) -> None:
        self._inner.write(Whereabouts((), self._relay))

    def refresh(self, whereabouts: Whereabouts) -> None:
        self._inner.refresh(Whereabouts((), self._relay))

    def read(self, node_id: bytes) -> Whereabouts | None:
        return self._inner.read(node_id)


@pytest.mark.parametrize(
    "relay",
    [
        "auto",
        "disabled",
        "n0",
        "https://relay.example.org",
        "http://[::1]:3340/",
        "https://10.0.0.1:443",
    ],
)
def test_relay_word_or_url_is_accepted(relay: str) -> None:
    assert relay_named(relay) == relay


@pytest.mark.parametrize(
    "relay",
    ["", "N0", "relay.example.org", "//relay", "ftp://relay", "https://", "https://:80", "https://r:0", "https://r:70000",
     "https://re lay", "https://relay\n", "https://me@relay", "https://relay/path", "https://relay?a", "http://[::1"],
)  # fmt: skip
def test_invalid_relay_is_refused_with_fix(relay: str) -> None:
    with pytest.raises(UsageError) as refused:
        relay_named(relay)
    assert "https://" in refused.value.fix
    assert "\n" not in refused.value.message


@pytest.mark.slow  # iroh looks at the network for three seconds before it turns to a relay
async def test_endpoint_uses_given_relay_and_peers_connect(tmp_path: Path) -> None:
    """The relay is a listener on this machine that answers pings and closes other connections."""
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        if requests[-1].startswith(b"GET /ping"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    nodes = [
        await open_iroh(
            secret(seed),
            bind_host="127.0.0.1",
            relay=url,
            discovery="local",
            discovery_dir=tmp_path / "peers",
        )
        for seed in (1, 2)
    ]
    try:
        join(nodes)
        await until(lambda: any(request.startswith(b"GET /relay") for request in requests))
        await until(lambda: all(len(node.reachable()) == 1 for node in nodes))
        assert all(
            one in (None, f"{url}/")
            for one in (whereabouts(node._endpoint).relay for node in nodes)
        )
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
        server.close()


@pytest.mark.slow
async def test_members_with_only_a_relay_exchange_blobs(tmp_path: Path) -> None:
    """Each member knows the other's relay and no address."""
    with real_relay(tmp_path / "relay") as url:
        places = tmp_path / "peers"
        nodes = [
            await open_iroh(
                secret(seed),
                bind_host="127.0.0.1",
                relay=url,
                discovery="local",
                directory=OnlyRelay(LocalDirectory(places, identity(seed)), url),
            )
            for seed in (1, 2)
        ]
        try:
            join(nodes)
            await until(lambda: all(len(node.reachable()) == 1 for node in nodes), 60)
            blob = content(300_000)
            digest = nodes[0].publish(blob)
            assert await nodes[1].fetch(digest, len(blob), [nodes[0].node_id], 60) == blob
        finally:
            for node in nodes:
                await node.close()


async def test_relay_url_unknown_to_iroh_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a valid relay URL"):
        await open_iroh(
            secret(1), relay="https://", discovery="local", discovery_dir=tmp_path / "peers"
        )
