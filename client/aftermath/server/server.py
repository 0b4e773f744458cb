"""The server: one run on an embedded chain, behind one port for authenticated members.

It speaks websockets only, with TLS if it has a certificate, and limits connections and messages. A
transaction is in the ledger before it is acknowledged, so a killed server resumes where it was.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from aftermath.base.concurrency import cancel
from aftermath.chain.addresses import run_addresses
from aftermath.localnet.config import LocalnetConfig
from aftermath.localnet.errors import JsonRpcError
from aftermath.localnet.node import EmbeddedNode
from aftermath.programs import AUTHORIZER_ID, AUTHORIZER_SO, COORDINATOR_ID, COORDINATOR_SO
from aftermath.server.account_funding import Accounts
from aftermath.server.connection_limiter import ConnectionLimiter
from aftermath.server.option_files import LEDGER, ServerError
from aftermath.server.rpc_methods import RpcMethods
from aftermath.server.session import ServerState, Session
from aftermath.server.sessions import Sessions

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1200
"""Two connections for each member of a full run, plus waiting members and closing connections."""
PROGRAM = Pubkey.from_string(COORDINATOR_ID)


@dataclass(frozen=True)
class ServerConfig:
    """Settings of a server.

    `state` is the directory for the run and the owner's key; None stores nothing. `allowed` are the
    identities that may connect; None allows all. `withdraw`: withdraw members that disconnected.
    """

    run_id: str
    host: str
    port: int
    state: Path | None
    tls: ssl.SSLContext | None
    allowed: frozenset[Pubkey] | None
    withdraw: bool


class RunServer:
    """Hosts one run: its chain, its sessions and its listening socket."""

    def __init__(self, config: ServerConfig) -> None:
        programs = ((COORDINATOR_ID, COORDINATOR_SO), (AUTHORIZER_ID, AUTHORIZER_SO))
        ledger = config.state / LEDGER if config.state is not None else None
        deployed = [(Pubkey.from_string(name), path) for name, path in programs]
        self.config = config
        self.node = EmbeddedNode(LocalnetConfig(ledger=ledger, programs=deployed))
        self.sessions = Sessions(self._withdraw if config.withdraw else None)
        run = run_addresses(PROGRAM, config.run_id).run
        self.accounts = Accounts(self.node, PROGRAM, run, self.sessions.is_connected)
        self._expiring: asyncio.Task[None] | None = None
        methods = RpcMethods(self.node, PROGRAM, run, self.accounts)
        self._limiter = ConnectionLimiter(self._handle)
        self._state = ServerState(
            self.node, methods, self.sessions, self._limiter, config.run_id, config.allowed
        )
        self._connections: set[Session] = set()
        self._runner = web.ServerRunner(self._limiter, handle_signals=False)
        self._listener: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        """Accept connections. Raises ServerError."""
        await self._runner.setup()
        try:
            self._listener = await self._limiter.listen(
                self.config.host, self.config.port, self.config.tls
            )
        except OSError as error:
            why = "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror
            raise ServerError(
                f"cannot listen at {self.config.host}:{self.config.port}: {why}",
                "Choose another port with --server-port, or another address with --host",
            ) from None
        self.port = self._listener.sockets[0].getsockname()[1]
        self._expiring = asyncio.create_task(self.accounts.expire())

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.Response(
                status=426,
                text="this is the server of a training run: aftermath-centralized client\n",
            )
        if len(self._connections) >= MAX_CONNECTIONS:
            return web.Response(status=503, text="the server has too many connections\n")
        session = Session(self._state, request.protocol)
        self._connections.add(session)
        try:
            return await session.serve(request)
        except ConnectionError:  # the client left before the answer
            return web.Response()
        finally:
            self._connections.discard(session)

    async def _withdraw(self, identity: Pubkey, transaction: bytes) -> None:
        """Send the withdraw transaction that a departed identity signed."""
        options = {"encoding": "base64", "skipPreflight": True}
        try:
            encoded = base64.b64encode(transaction).decode()
            await self.node.methods["sendTransaction"]([encoded, options])
        except JsonRpcError as error:
            log.warning("%s could not be withdrawn: %s", identity, error.message)
            return
        signature = VersionedTransaction.from_bytes(transaction).signatures[0]
        landed = self.node.bank.history.get(signature)
        if landed is not None and landed.error is None:
            log.info("%s is withdrawn from the run", identity)

    async def close(self) -> None:
        """Stop serving. All acknowledged transactions are already in the ledger."""
        if self._listener is not None:
            self._listener.close()
        if self._expiring is not None:
            await cancel([self._expiring])
        await self.sessions.close()
        for session in list(self._connections):
            await session.close()
        await self._runner.cleanup()
        await self.sessions.close()
        await self.node.close()


@asynccontextmanager
async def open_server(config: ServerConfig) -> AsyncIterator[RunServer]:
    """Start a server's chain. Nobody can connect before `listen`.

    Raises LocalnetError if the state directory cannot be used.
    """
    server = RunServer(config)
    try:
        server.node.start()
        yield server
    finally:
        await server.close()
