"""The embedded network on its sockets: HTTP and websocket on the RPC port, websocket on the next.

It is a low-level aiohttp server without routing, for speed. It takes JSON bodies only and sends no
cross-origin headers, so that a web page cannot talk to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable

from aiohttp import web

from aftermath.base.signals import on_signals
from aftermath.localnet.bank import Bank
from aftermath.localnet.config import LocalnetConfig, LocalnetEngine, Network
from aftermath.localnet.errors import LocalnetError
from aftermath.localnet.free_ports import free_ports
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.pubsub import SubscriberConnection
from aftermath.localnet.slots import TimeSource

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
PORT_ATTEMPTS = 5
JSON = "application/json"


class RunningLocalnet:
    """A network that serves until `close`. Its slots follow `time`; tests inspect `bank`."""

    def __init__(self, config: LocalnetConfig) -> None:
        self._node = EmbeddedNode(config)
        self.bank: Bank = self._node.bank
        self.time: TimeSource = config.time
        self._host = config.host
        self._rpc = self._node.rpc(self._node.methods)
        self._connections: set[SubscriberConnection] = set()
        self._runner: web.ServerRunner | None = None
        self.rpc_port = 0

    @property
    def rpc_url(self) -> str:
        return f"http://{_in_url(self._host)}:{self.rpc_port}"

    @property
    def ws_url(self) -> str:
        return f"ws://{_in_url(self._host)}:{self.rpc_port + 1}"

    async def open(self, config: LocalnetConfig) -> None:
        """Bind both ports, start the slots and give the configured airdrops."""
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), handle_signals=False)
        await runner.setup()
        self._runner = runner
        await self._bind(runner, config)
        self._node.start()
        for key, lamports in config.airdrops:
            await self._node.provide(key, lamports)

    async def _bind(self, runner: web.ServerRunner, config: LocalnetConfig) -> None:
        attempts = 1 if config.rpc_port else PORT_ATTEMPTS
        for attempt in range(attempts):
            self.rpc_port = config.rpc_port or free_ports(config.host, 2)
            sites = [
                web.TCPSite(runner, config.host, port)
                for port in (self.rpc_port, self.rpc_port + 1)
            ]
            try:
                for site, port in zip(sites, (self.rpc_port, self.rpc_port + 1), strict=True):
                    await _listen(site, port)
                return
            except LocalnetError:
                if attempt == attempts - 1:
                    raise
                for site in [site for site in sites if site in runner.sites]:
                    await site.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ConnectionError:  # the client left, so no reply reaches it
            return web.Response()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._subscribe(request)
        if request.method == "GET" and request.path == "/health":
            return web.Response(text=self._node.health.word())
        if request.method != "POST":
            return web.Response(
                status=405, text="Used HTTP Method is not allowed. POST is required\n"
            )
        if request.content_type != JSON:
            return web.Response(
                status=415,
                text="Supplied content type is not allowed. application/json is required\n",
            )
        try:
            body = await _body(request)
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413, text=f"A request may have {MAX_BODY_BYTES} bytes\n")
        return web.Response(body=await self._rpc.answer(body), content_type=JSON)

    async def _subscribe(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = SubscriberConnection(self._node.subscriptions)
        self._connections.add(connection)
        try:
            return await connection.serve(request)
        finally:
            self._connections.discard(connection)

    async def close(self) -> None:
        """Stop serving. The ledger already has everything acknowledged."""
        await asyncio.gather(
            *(one.close() for one in list(self._connections)), return_exceptions=True
        )
        if self._runner is not None:
            await self._runner.cleanup()
        await self._node.close()


async def _body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    return await request.read()


async def _listen(site: web.TCPSite, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = "Stop what listens there, or choose another with --port (the websocket uses the port after it)"
            raise LocalnetError(f"port {port} is in use", fix) from None
        raise LocalnetError(
            f"cannot listen on port {port}: {error.strerror}", "Choose another host or port"
        ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def serve(config: LocalnetConfig) -> RunningLocalnet:
    """Start the embedded network in this event loop. Raises `LocalnetError`."""
    running = RunningLocalnet(config)
    try:
        await running.open(config)
    except BaseException:
        await running.close()
        raise
    return running


class EmbeddedEngine:
    """An engine that runs LiteSVM in this process."""

    async def start(self, config: LocalnetConfig) -> RunningLocalnet:
        return await serve(config)


def print_ready(network: Network) -> None:
    print(f"localnet ready rpc={network.rpc_url} ws={network.ws_url}", flush=True)


def run_localnet(
    config: LocalnetConfig,
    engine: LocalnetEngine,
    announce: Callable[[Network], None] = print_ready,
) -> None:
    """Start, announce (one line by default) and block until a signal ends it.

    Raise LocalnetError if the network cannot start.
    """
    asyncio.run(_until_signal(config, engine, announce))


async def _until_signal(
    config: LocalnetConfig, engine: LocalnetEngine, announce: Callable[[Network], None]
) -> None:
    stop = asyncio.Event()
    with on_signals(lambda _: stop.set()):
        await _until(stop, config, engine, announce)


async def _until(
    stop: asyncio.Event,
    config: LocalnetConfig,
    engine: LocalnetEngine,
    announce: Callable[[Network], None],
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
