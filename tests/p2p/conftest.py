"""Real endpoints on loopback for the tests of the peer-to-peer room."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aftermath.p2p.iroh import IrohTransport, open_iroh

Opener = Callable[..., Awaitable[IrohTransport]]


def secret(seed: int) -> bytes:
    """A repeatable 32-byte secret key."""
    return hashlib.sha256(f"p2p test {seed}".encode()).digest()


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opener]:
    """Opens transports that find each other through one directory, and closes them after the test."""
    transports: list[IrohTransport] = []

    async def open_one(seed: int, **options: object) -> IrohTransport:
        settings = {
            "bind_host": "127.0.0.1",
            "relay": "disabled",
            "discovery": "local",
            "discovery_dir": tmp_path / "run",
        }
        transport = await open_iroh(secret(seed), **(settings | options))
        transports.append(transport)
        return transport

    yield open_one
    for transport in transports:
        await transport.close()


@pytest.fixture
def mesh(opened: Opener) -> Callable[..., Awaitable[list[IrohTransport]]]:
    """Opens so many transports and connects all of them."""

    async def build(*seeds: int) -> list[IrohTransport]:
        nodes = [await opened(seed) for seed in seeds]
        join(nodes)
        await until(lambda: all(len(node.reachable()) == len(nodes) - 1 for node in nodes))
        return nodes

    return build


def join(nodes: list[IrohTransport]) -> None:
    """Make all nodes members of each other's run."""
    for node in nodes:
        node.set_members([one.node_id for one in nodes])


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
