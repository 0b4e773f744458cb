"""A member's connections to its server: authenticated websockets in place of an RPC node.

This is a `chain.wire.Wire`, so everything above it is the member's client of a cluster. Calls use
one connection, made at first use and again after it broke; it also reports peers' addresses
(`peers`). The subscription has another one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import httpx
import msgspec
from msgspec import Meta
from solders.keypair import Keypair
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.concurrency import cancel
from aftermath.base.proxies import proxy_url
from aftermath.chain.wallet import Wallet
from aftermath.coordinator.errors import CoordinatorError
from aftermath.p2p.discovery import Whereabouts, believable
from aftermath.server.handshake import Denied, admitted, answer, challenged
from aftermath.server.trust import Trust

log = logging.getLogger(__name__)

MAX_MESSAGE = 4 << 20
OPEN_SECONDS = 5.0
PING_SECONDS = 5.0
CLOSE_SECONDS = 0.2
MOST_PEERS = 1024
_STRANGE = "it does not greet as an aftermath-centralized server does"


class PeerAddress(msgspec.Struct, frozen=True):
    """Where a peer is; None: nowhere any more."""

    peer: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    at: Whereabouts | None = None


class _Message(msgspec.Struct, frozen=True):
    """What is looked at of any message before it is handed on."""

    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")


class _List(msgspec.Struct, frozen=True):
    result: Annotated[tuple[PeerAddress, ...], Meta(max_length=MOST_PEERS)]


class ServerRefused(CoordinatorError):
    """The server does not let this member in, or is not the one it should be."""

    code = "server-refused"


class NotAdmitted(ServerRefused):
    """The server's list of members does not have this identity."""

    code = "not-admitted"


class NotTheServer(ConnectionError):
    """What answers does not do so as the server should, or not now. That may pass, as where nobody
    answers.
    """


class ServerConnection(httpx.AsyncBaseTransport):
    """One member's way to the server at `address` (HOST:PORT). `peer` is the key its peers know it
    by.
    """

    def __init__(
        self, address: str, trust: Trust | None, run_id: str, wallet: Wallet, peer: Keypair
    ) -> None:
        self.address = address
        self.url = f"{'wss' if trust else 'ws'}://{address}"
        self.trust = trust
        self._run_id = run_id
        self._wallet = wallet
        self._peer = peer
        self._genesis = ""
        self._connection: ClientConnection | None = None
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None
        self._waiting: dict[int | str, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)
        self._here: Whereabouts | None = None
        self.peers: dict[bytes, Whereabouts] = {}
        """Where the server says that they are; kept while it is away."""

    # --- the wire ---------------------------------------------------------------------------------

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, timeout=None)

    @asynccontextmanager
    async def websocket(self, url: str) -> AsyncIterator[ClientConnection]:
        connection = await self._open()
        try:
            yield connection
        finally:
            await connection.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        head: _Message = json_as(body, _Message)
        assert head.id is not None
        try:
            return httpx.Response(200, content=await self._ask(head.id, body.decode()))
        except NotTheServer:  # which says more than that there is no connection
            raise
        except (OSError, WebSocketException, Malformed) as error:
            raise httpx.ConnectError(str(error)) from error

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        await cancel([task for task in (self._reader, self._teller) if task is not None])

    # --- calls of our own -------------------------------------------------------------------------

    async def keep_will(self, transaction: bytes) -> None:
        """Leave a signed transaction (base64) with the server, to be sent when we are gone. Raises
        as `_ask`.
        """
        await self._call("keepLastWill", [transaction.decode(), {"encoding": "base64"}])

    async def announce(self, here: Whereabouts) -> None:
        """Tell the others where we are, now and after every new connection. Raises as `_ask`."""
        self._here = here
        connection = self._connection
        await self._connected()
        if self._connection is connection:  # a new one has said it already
            await self._tell()

    async def _tell(self) -> None:
        reply = await self._call("announceWhereabouts", [msgspec.to_builtins(self._here)])
        listed: _List = json_as(reply, _List)
        for one in listed.result:
            self._found(one)

    def _found(self, one: PeerAddress) -> None:
        key = bytes.fromhex(one.peer)
        if one.at is None:
            self.peers.pop(key, None)
            return
        with suppress(ValueError):
            if believable(one.at) and (key in self.peers or len(self.peers) < MOST_PEERS):
                self.peers[key] = one.at

    async def _call(self, method: str, params: list[Any]) -> bytes:
        number = f"{method} {next(self._numbers)}"
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await self._ask(number, body)

    # --- the connection ---------------------------------------------------------------------------

    async def _ask(self, number: int | str, body: str) -> bytes:
        """The reply to a call. Raises OSError, WebSocketException or Malformed without one,
        ServerRefused.
        """
        connection = await self._connected()
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = reply
        try:
            await connection.send(body)
            return await reply
        finally:
            self._waiting.pop(number, None)
            if reply.done() and not reply.cancelled():
                # asked for, or asyncio complains: `send` may have raised before it was awaited
                reply.exception()

    async def _connected(self) -> ClientConnection:
        async with self._opening:
            if self._connection is None:
                self._connection = await self._open()
                self._reader = asyncio.create_task(self._read(self._connection))
                if self._here is not None:
                    self._teller = asyncio.create_task(self._told())
            return self._connection

    async def _told(self) -> None:
        with suppress(OSError, WebSocketException, Malformed, CoordinatorError):
            await self._tell()

    async def _read(self, connection: ClientConnection) -> None:
        """Hand out what comes until the connection ends."""
        try:
            async for message in connection:
                self._take(message)
        except (WebSocketException, Malformed) as error:
            log.debug("the connection to the server broke: %s", error)
        finally:
            self._connection = None
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(ConnectionError("the connection to the server broke"))
            await connection.close()

    def _take(self, message: str | bytes) -> None:
        data = message.encode() if isinstance(message, str) else message
        head: _Message = json_as(data, _Message)
        if head.method == "whereaboutsNotification":
            self._found(json_as(bytes(head.params), PeerAddress))
        elif head.id in self._waiting and not self._waiting[head.id].done():
            self._waiting[head.id].set_result(data)

    async def _open(self) -> ClientConnection:
        """A connection on which we are let in. Raises OSError, WebSocketException,
        ServerRefused.
        """
        connection = await self._reached()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._greet(connection)
        except BaseException as error:
            await connection.close()
            if isinstance(error, Malformed):
                raise NotTheServer(_STRANGE) from error
            raise
        return connection

    async def _reached(self) -> ClientConnection:
        """A connection to whatever is at the address."""
        try:
            return await connect(
                self.url,
                proxy=proxy_url(self.url),
                ssl=None if self.trust is None else self.trust.context,
                max_size=MAX_MESSAGE,
                open_timeout=OPEN_SECONDS,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=CLOSE_SECONDS,
            )
        except ssl.SSLCertVerificationError as error:
            untrusted = f"the certificate of the server {self.address} is not to be trusted: {error.verify_message}"
            if self._genesis:
                raise NotTheServer(untrusted) from error
            assert self.trust is not None
            raise ServerRefused(untrusted, self.trust.fix) from error
        except ssl.SSLError as error:
            raise NotTheServer(
                "it does not speak TLS as a server with a certificate does"
            ) from error
        except InvalidHandshake as error:
            raise NotTheServer(_STRANGE) from error

    async def _greet(self, connection: ClientConnection) -> None:
        """Raises Malformed for what is no greeting, and as `_sent_away` gives it."""
        challenge = challenged(await connection.recv())
        if challenge.run_id != self._run_id:
            raise self._sent_away(
                f"the server {self.address} keeps the run {challenge.run_id!r}, not {self._run_id!r}",
                f"Pass --run-id {challenge.run_id}, or the address of another server",
            )
        if self._genesis and challenge.genesis != self._genesis:
            raise self._sent_away(
                f"the server {self.address} has restarted without its state, and the run is lost",
                "Start this member again; a server keeps its run with --save-state-dir",
            )
        await connection.send(answer(challenge, self._wallet.keypair, self._peer).decode())
        said = admitted(await connection.recv())
        if isinstance(said, Denied):
            if self._genesis and said.for_now:
                raise NotTheServer(said.message)
            raise self._sent_away(said.message, said.fix, NotAdmitted)
        self._genesis = challenge.genesis

    def _sent_away(
        self, message: str, fix: str, refusal: type[ServerRefused] = ServerRefused
    ) -> ServerRefused | NotTheServer:
        """Return the error for a refused handshake.

        Without TLS, anyone on the way can forge a refusal. So after a first success it counts as a
        failure to reach the server, not as its answer.
        """
        if self._genesis and self.trust is None:
            return NotTheServer(
                f"{message}, or something between this machine and the server interferes"
            )
        return refusal(message, fix)
