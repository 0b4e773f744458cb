"""The embedded engine, and the network of any engine as a foreground process that ends on Ctrl-C, also while it
starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aftermath.base.signals import heard
from aftermath.localnet.config import LocalnetConfig, LocalnetEngine, Network
from aftermath.localnet.server import RunningLocalnet, serve


class EmbeddedEngine:
    """LiteSVM in this process."""

    async def start(self, config: LocalnetConfig) -> RunningLocalnet:
        return await serve(config)


def print_ready(network: Network) -> None:
    print(f"localnet ready rpc={network.rpc_url} ws={network.ws_url}", flush=True)


def run_localnet(
    config: LocalnetConfig, engine: LocalnetEngine, announce: Callable[[Network], None] = print_ready
) -> None:
    """Start, announce (one line by default) and block until SIGINT or SIGTERM. Raises `LocalnetError`."""
    asyncio.run(_until_signal(config, engine, announce))


async def _until_signal(config: LocalnetConfig, engine: LocalnetEngine, announce: Callable[[Network], None]) -> None:
    stop = asyncio.Event()
    with heard(lambda _: stop.set()):
        await _until(stop, config, engine, announce)


async def _until(
    stop: asyncio.Event, config: LocalnetConfig, engine: LocalnetEngine, announce: Callable[[Network], None]
) -> None:
    starting = asyncio.ensure_future(engine.start(config))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await starting).close()
        return
    network = await starting
    try:
        announce(network)
        await stopping
    finally:
        await network.close()
