"""The embedded network on its sockets: HTTP and websocket on the RPC port, websocket alone on the next one.

Decided: a low-level aiohttp server without routing, for speed; loopback unless another host is asked for; only JSON
bodies, and no cross-origin headers, so that a web page cannot talk to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging

from aiohttp import web

from aftermath.localnet.bank import Bank
from aftermath.localnet.commit import Committer
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import LocalnetError, RpcError
from aftermath.localnet.free_ports import free_ports
from aftermath.localnet.genesis import faucet_of, open_chain
from aftermath.localnet.ledger import Ledger
from aftermath.localnet.liveness import Health
from aftermath.localnet.pubsub import Connection
from aftermath.localnet.reading import Reading
from aftermath.localnet.rpc import Rpc
from aftermath.localnet.sending import Sending
from aftermath.localnet.subscriptions import Subscriptions
from aftermath.localnet.timing import TimeSource

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1024 * 1024
PORT_ATTEMPTS = 5
JSON = "application/json"


class RunningLocalnet:
    """A network that serves until `close`. `time` is what its slots follow; `bank` is there for inspection."""

    def __init__(self, config: LocalnetConfig, bank: Bank, ledger: Ledger | None) -> None:
        self.bank = bank
        self.time: TimeSource = config.time
        self._host = config.host
        self._ledger = ledger
        self._committer = Committer(bank, ledger)
        self._subscriptions = Subscriptions(bank)
        self._health = Health(bank, self._committer)
        reading = Reading(bank)
        self._sending = Sending(bank, self._committer, reading, faucet_of(bank.slots.genesis))
        self._rpc = Rpc(bank, {**reading.methods(), **self._sending.methods(), **self._health.methods()})
        self._connections: set[Connection] = set()
        self._runner: web.ServerRunner | None = None
        self._clockwork: asyncio.Task[None] | None = None
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
        self._clockwork = asyncio.create_task(self._keep_time())
        self._health.watch(self._clockwork)
        for key, lamports in config.airdrops:
            missing = lamports - self.bank.balance(key)
            if missing > 0:
                try:
                    await self._sending.give(key, missing)
                except RpcError as error:
                    raise LocalnetError(error.message, "ask for fewer lamports") from None

    async def _bind(self, runner: web.ServerRunner, config: LocalnetConfig) -> None:
        attempts = 1 if config.rpc_port else PORT_ATTEMPTS
        for attempt in range(attempts):
            self.rpc_port = config.rpc_port or free_ports(config.host, 2)
            sites = [web.TCPSite(runner, config.host, port) for port in (self.rpc_port, self.rpc_port + 1)]
            try:
                for site, port in zip(sites, (self.rpc_port, self.rpc_port + 1), strict=True):
                    await _listen(site, port)
                return
            except LocalnetError:
                if attempt == attempts - 1:
                    raise
                for site in [site for site in sites if site in runner.sites]:
                    await site.stop()

    async def _keep_time(self) -> None:
        while True:
            await self.time.sleep(self.bank.slots.seconds_to_next(self.time.now()))
            self.bank.tick()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ConnectionError:  # it has left, and no answer reaches it
            return web.Response()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._subscribe(request)
        if request.method == "GET" and request.path == "/health":
            return web.Response(text=self._health.word())
        if request.method != "POST":
            return web.Response(status=405, text="Used HTTP Method is not allowed. POST is required\n")
        if request.content_type != JSON:
            return web.Response(status=415, text="Supplied content type is not allowed. application/json is required\n")
        try:
            body = await _body(request)
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413, text=f"A request may have {MAX_BODY_BYTES} bytes\n")
        return web.Response(body=await self._rpc.answer(body), content_type=JSON)

    async def _subscribe(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = Connection(self._subscriptions)
        self._connections.add(connection)
        try:
            return await connection.serve(request)
        finally:
            self._connections.discard(connection)

    async def close(self) -> None:
        """Stop serving; everything acknowledged is in the ledger already."""
        if self._clockwork is not None:
            self._clockwork.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clockwork
        await asyncio.gather(*(one.close() for one in list(self._connections)), return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


async def _body(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise web.HTTPRequestEntityTooLarge(MAX_BODY_BYTES, request.content_length or 0)
    return await request.read()


async def _listen(site: web.TCPSite, port: int) -> None:
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = "stop what listens there, or choose another with --rpc-port (the websocket uses the port after it)"
            raise LocalnetError(f"port {port} is in use", fix) from None
        raise LocalnetError(f"cannot listen on port {port}: {error.strerror}", "choose another host or port") from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def serve(config: LocalnetConfig) -> RunningLocalnet:
    """Start the embedded network in this event loop. Raises `LocalnetError`."""
    bank, ledger = open_chain(config.ledger, config.time, config.slot_ms, config.programs)
    running = RunningLocalnet(config, bank, ledger)
    try:
        await running.open(config)
    except BaseException:
        await running.close()
        raise
    return running
