"""A member's authenticated websockets to its server, used instead of an RPC node.

`ServerConnection` is a `chain.node_client.Wire`, so the client code for a cluster works on top of
it. All calls share one connection, which opens at the first call and reopens after a failure. It
also receives the addresses of peers. The account subscription has a connection of its own.
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
from aftermath.server.handshake import Denied, parse_challenge, parse_verdict, sign_answer
from aftermath.server.tls_trust import TlsTrust

log = logging.getLogger(__name__)

MAX_MESSAGE = 4 << 20  # bytes
OPEN_SECONDS = 5.0
PING_SECONDS = 5.0
CLOSE_SECONDS = 0.2
MAX_PEERS = 1024
"""Maximum peers whose addresses are stored."""
_NOT_OUR_SERVER = "it does not greet as an aftermath-centralized server does"


class PeerAddress(msgspec.Struct, frozen=True):
    """A peer's addresses. `at` is None if the peer disconnected."""

    peer: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    at: Whereabouts | None = None


class _Envelope(msgspec.Struct, frozen=True):
    """The JSON-RPC fields that decide where a message belongs."""

    id: int | str | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"null")


class _PeerList(msgspec.Struct, frozen=True):
    result: Annotated[tuple[PeerAddress, ...], Meta(max_length=MAX_PEERS)]


class ServerRefused(CoordinatorError):
    """The server refuses this member, or it serves another run."""

    code = "server-refused"


class NotAdmitted(ServerRefused):
    """The identity is not on the server's list of members."""

    code = "not-admitted"


class UnexpectedReply(ConnectionError):
    """The address does not answer like this run's server. Calls retry, because it may recover."""


class ServerConnection(httpx.AsyncBaseTransport):
    """A member's connection to the server at `address` (HOST:PORT). `peer` is its peer key."""

    def __init__(
        self, address: str, trust: TlsTrust | None, run_id: str, wallet: Wallet, peer: Keypair
    ) -> None:
        self.address = address
        self.url = f"{'wss' if trust else 'ws'}://{address}"
        self.trust = trust
        self._run_id = run_id
        self._wallet = wallet
        self._peer = peer
        self._genesis = ""
        """Genesis hash of the server's chain, once a handshake has succeeded."""
        self._connection: ClientConnection | None = None
        self._opening = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self._replies: dict[int | str, asyncio.Future[bytes]] = {}
        self._ids = itertools.count(1)
        self._announced: Whereabouts | None = None
        self.peers: dict[bytes, Whereabouts] = {}
        """Addresses by peer key, as last received. They survive a broken connection."""

    # --- the wire

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client whose requests become calls over the websocket."""
        return httpx.AsyncClient(transport=self, timeout=None)

    @asynccontextmanager
    async def websocket(self, url: str) -> AsyncIterator[ClientConnection]:
        """Open another authenticated connection, for a subscription."""
        connection = await self._open()
        try:
            yield connection
        finally:
            await connection.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a JSON-RPC request over the websocket, and return its reply."""
        body = await request.aread()
        head: _Envelope = json_as(body, _Envelope)
        assert head.id is not None
        try:
            return httpx.Response(200, content=await self._request(head.id, body.decode()))
        except UnexpectedReply:  # its message says more than a connection error
            raise
        except (OSError, WebSocketException, Malformed) as error:
            raise httpx.ConnectError(str(error)) from error

    async def aclose(self) -> None:
        """Close the shared connection. Subscriptions close their own."""
        if self._connection is not None:
            await self._connection.close()
        await cancel([task for task in (self._reader, self._announcing) if task is not None])

    # --- calls that a cluster does not have

    async def set_withdraw_transaction(self, transaction: bytes) -> None:
        """Give the server a signed transaction (base64) to send once this member is gone.

        Raises what `_request` raises.
        """
        await self._call("keepLastWill", [transaction.decode(), {"encoding": "base64"}])

    async def announce(self, whereabouts: Whereabouts) -> None:
        """Publish this member's addresses now, and again after every reconnection.

        Raises what `_request` raises.
        """
        self._announced = whereabouts
        connection = self._connection
        await self._connected()
        # A connection that was opened just now announces the addresses by itself.
        if self._connection is connection:
            await self._send_announcement()

    async def _send_announcement(self) -> None:
        reply = await self._call("announceWhereabouts", [msgspec.to_builtins(self._announced)])
        answer: _PeerList = json_as(reply, _PeerList)
        for peer in answer.result:
            self._update_peer(peer)

    def _update_peer(self, peer: PeerAddress) -> None:
        """Store, replace or remove the addresses of a peer. Ignore implausible addresses."""
        key = bytes.fromhex(peer.peer)
        if peer.at is None:
            self.peers.pop(key, None)
            return
        with suppress(ValueError):
            if believable(peer.at) and (key in self.peers or len(self.peers) < MAX_PEERS):
                self.peers[key] = peer.at

    async def _call(self, method: str, params: list[Any]) -> bytes:
        number = f"{method} {next(self._ids)}"
        body = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await self._request(number, body)

    # --- the shared connection

    async def _request(self, number: int | str, body: str) -> bytes:
        """Send a call and return its reply.

        Raises OSError, WebSocketException or Malformed if there is no reply, and ServerRefused.
        """
        connection = await self._connected()
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._replies[number] = reply
        try:
            await connection.send(body)
            return await reply
        finally:
            self._replies.pop(number, None)
            if reply.done() and not reply.cancelled():
                # Retrieve the exception, or asyncio logs it: `send` may have raised first.
                reply.exception()

    async def _connected(self) -> ClientConnection:
        """Return the shared connection. Open it if necessary."""
        async with self._opening:
            if self._connection is None:
                self._connection = await self._open()
                self._reader = asyncio.create_task(self._read(self._connection))
                if self._announced is not None:
                    self._announcing = asyncio.create_task(self._reannounce())
            return self._connection

    async def _reannounce(self) -> None:
        with suppress(OSError, WebSocketException, Malformed, CoordinatorError):
            await self._send_announcement()

    async def _read(self, connection: ClientConnection) -> None:
        """Dispatch messages until the connection ends. Then fail all open calls."""
        try:
            async for message in connection:
                self._dispatch(message)
        except (WebSocketException, Malformed) as error:
            log.debug("the connection to the server broke: %s", error)
        finally:
            self._connection = None
            for reply in self._replies.values():
                if not reply.done():
                    reply.set_exception(ConnectionError("the connection to the server broke"))
            await connection.close()

    def _dispatch(self, message: str | bytes) -> None:
        """Handle a notification, or pass a reply to its caller."""
        data = message.encode() if isinstance(message, str) else message
        head: _Envelope = json_as(data, _Envelope)
        if head.method == "whereaboutsNotification":
            self._update_peer(json_as(bytes(head.params), PeerAddress))
        elif head.id in self._replies and not self._replies[head.id].done():
            self._replies[head.id].set_result(data)

    async def _open(self) -> ClientConnection:
        """Open a connection and authenticate. Raises OSError, WebSocketException, ServerRefused."""
        connection = await self._dial()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._handshake(connection)
        except BaseException as error:
            await connection.close()
            if isinstance(error, Malformed):
                raise UnexpectedReply(_NOT_OUR_SERVER) from error
            raise
        return connection

    async def _dial(self) -> ClientConnection:
        """Open a websocket to the address, which may belong to another server."""
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
            untrusted = f"the certificate of the server {self.address} is not trusted: {error.verify_message}"
            if self._genesis:
                raise UnexpectedReply(untrusted) from error
            assert self.trust is not None
            raise ServerRefused(untrusted, self.trust.fix) from error
        except ssl.SSLError as error:
            raise UnexpectedReply(
                "it does not speak TLS as a server with a certificate does"
            ) from error
        except InvalidHandshake as error:
            raise UnexpectedReply(_NOT_OUR_SERVER) from error

    async def _handshake(self, connection: ClientConnection) -> None:
        """Authenticate. Raises Malformed for an invalid message, and what `_refusal` returns."""
        challenge = parse_challenge(await connection.recv())
        if challenge.run_id != self._run_id:
            raise self._refusal(
                f"the server {self.address} serves the run {challenge.run_id!r}, not {self._run_id!r}",
                f"Pass --run-id {challenge.run_id}, or the address of another server",
            )
        if self._genesis and challenge.genesis != self._genesis:
            raise self._refusal(
                f"the server {self.address} has restarted without its state, and the run is lost",
                "Start this member again; a server keeps its run with --save-state-dir",
            )
        await connection.send(sign_answer(challenge, self._wallet.keypair, self._peer).decode())
        verdict = parse_verdict(await connection.recv())
        if isinstance(verdict, Denied):
            if self._genesis and verdict.for_now:
                raise UnexpectedReply(verdict.message)
            raise self._refusal(verdict.message, verdict.fix, NotAdmitted)
        self._genesis = challenge.genesis

    def _refusal(
        self, message: str, fix: str, refusal: type[ServerRefused] = ServerRefused
    ) -> ServerRefused | UnexpectedReply:
        """Return the error for a refused handshake.

        Without TLS, anyone between member and server can forge a refusal. So after the first
        successful handshake, a refusal without TLS only counts as a failed connection.
        """
        if self._genesis and self.trust is None:
            return UnexpectedReply(
                f"{message}, or something between this machine and the server interferes"
            )
        return refusal(message, fix)
