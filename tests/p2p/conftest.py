"""Real endpoints on loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aftermath.p2p import blob_fetch, peer_stats
from aftermath.p2p.iroh import IrohTransport, open_iroh
from p2p.nodes import Rogue, join, secret, until


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[IrohTransport]]]:
    """Yield a function that opens transports in one discovery directory.

    Close them after the test.
    """
    transports: list[IrohTransport] = []

    async def open_one(seed: int, bind_port: int = 0) -> IrohTransport:
        transport = await open_iroh(
            secret(seed),
            bind_host="127.0.0.1",
            bind_port=bind_port,
            relay="disabled",
            discovery="local",
            discovery_dir=tmp_path / "run",
        )
        transports.append(transport)
        return transport

    yield open_one
    await asyncio.gather(*(transport.close() for transport in transports))


@pytest.fixture
def mesh(
    opened: Callable[..., Awaitable[IrohTransport]],
) -> Callable[..., Awaitable[list[IrohTransport]]]:
    """Yield a function that opens a transport per seed and connects all of them."""

    async def build(*seeds: int) -> list[IrohTransport]:
        nodes = [await opened(seed) for seed in seeds]
        join(nodes)
        await until(lambda: all(len(node.reachable()) == len(nodes) - 1 for node in nodes))
        return nodes

    return build


@pytest.fixture
async def rogue() -> AsyncIterator[Callable[..., Awaitable[Rogue]]]:
    """Yield a function that opens rogue peers. Close them after the test."""
    rogues: list[Rogue] = []

    async def open_one(seed: int) -> Rogue:
        rogues.append(await Rogue.open(seed))
        return rogues[-1]

    yield open_one
    await asyncio.gather(*(one.close() for one in rogues))


@pytest.fixture
def no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a second holder only after giving up the first, so a slow machine changes no count."""
    monkeypatch.setattr(
        peer_stats.PeerMeasurements, "hedge", lambda self, holder: peer_stats.LONGEST_PATIENCE_S
    )


@pytest.fixture
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up no holder before a third of the deadline, so that only help can save a fetch."""
    monkeypatch.setattr(peer_stats.PeerMeasurements, "patience", lambda self, holder: 1e6)
    monkeypatch.setattr(peer_stats.PeerMeasurements, "hedge", lambda self, holder: 0.4)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge a silent or slow holder four times as early."""
    monkeypatch.setattr(peer_stats, "HEDGE_S", peer_stats.HEDGE_S / 4)
    monkeypatch.setattr(peer_stats, "PATIENCE_S", peer_stats.PATIENCE_S / 4)
    monkeypatch.setattr(blob_fetch, "TICK_S", blob_fetch.TICK_S / 4)
