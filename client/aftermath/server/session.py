"""One connection at the server: the handshake, then the member's calls, one after the other.

Messages have a maximum length, and each call is answered before the next one is read, so that a
member cannot queue work. A malformed message ends the connection.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from aiohttp import WSMsgType, web
from solders.pubkey import Pubkey

from aftermath.base.bounded import Malformed
from aftermath.base.rate_limit import peer_network
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.pubsub import SubscriberConnection
from aftermath.server.connection_limiter import HANDSHAKE_SECONDS, ConnectionLimiter
from aftermath.server.handshake import NONCE_BYTES, Challenge, Denied, Welcome, verify_answer
from aftermath.server.rpc_methods import RpcMethods
from aftermath.server.sessions import MAX_CONNECTIONS_PER_IDENTITY, ConnectedClient, Sessions

PING_SECONDS = 5.0
MAX_UNREAD_BYTES = 4 << 20
"""Maximum bytes of messages that a member has not read: many times the messages of a round."""


class ServerState:
    """State that all connections share: the run, the allowlist, the connected clients."""

    def __init__(
        self,
        node: EmbeddedNode,
        methods: RpcMethods,
        sessions: Sessions,
        limiter: ConnectionLimiter,
        run_id: str,
        allowed: frozenset[Pubkey] | None,
    ) -> None:
        self.node = node
        self.methods = methods
        self.sessions = sessions
        self.limiter = limiter
        self.run_id = run_id
        self.allowed = allowed

    def refusal_for(self, identity: Pubkey) -> Denied | None:
        """Return why an identity may not connect, or None if it may."""
        if self.allowed is not None and identity not in self.allowed:
            return Denied(
                f"identity {identity} is not on this server's list of members",
                "ask the server's operator to add it to the --allow file",
            )
        if not self.sessions.has_room(identity):
            return Denied(
                f"identity {identity} has {MAX_CONNECTIONS_PER_IDENTITY} connections already",
                "use a different identity for each member",
                for_now=True,
            )
        return None


class Session(SubscriberConnection):
    """A connection that lasts until the member leaves, lags behind or sends a malformed message."""

    def __init__(self, state: ServerState, connection: web.RequestHandler) -> None:
        super().__init__(state.node.subscriptions, ping=PING_SECONDS, most=MAX_UNREAD_BYTES)
        self._state = state
        self._connection = connection

    async def _read(self) -> None:
        try:
            client = await self._handshake()
        except (Malformed, TimeoutError):
            return
        if client is None:
            return
        try:
            await self._serve_calls(client)
        finally:
            self._state.sessions.remove(client, self)

    async def _handshake(self) -> ConnectedClient | None:
        """Return the client, or None if it is refused. Raises Malformed or TimeoutError."""
        genesis = str(self._state.node.bank.slots.genesis)
        challenge = Challenge(self._state.run_id, genesis, os.urandom(NONCE_BYTES).hex())
        await self._send(challenge)
        message = await self._socket.receive(HANDSHAKE_SECONDS)
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return None
        key, peer = verify_answer(challenge, message.data)
        identity = Pubkey(key)
        if refusal := self._state.refusal_for(identity):
            await self._send(refusal)
            return None
        self._state.limiter.release(self._connection)
        await self._send(Welcome())
        return self._state.sessions.add(identity, peer, self)

    async def _serve_calls(self, client: ConnectedClient) -> None:
        """Answer calls until the connection ends."""
        sessions = self._state.sessions
        methods = self._state.methods.methods_for(
            client.identity,
            peer_network(self._transport),
            self,
            lambda whereabouts: sessions.announce(client, whereabouts, self),
            lambda transaction: sessions.set_withdraw_transaction(client, transaction),
        )
        rpc = self._state.node.rpc(methods)
        async for message in self._socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            sessions.record_message()
            data = message.data.encode() if isinstance(message.data, str) else message.data
            if data.lstrip()[:1] != b"{":  # refuse batches: one message could ask for a lot of work
                return
            reply = await rpc.answer(data)
            if reply:
                self.put(reply.decode())
            # Let other connections run, even if this member sends without a pause.
            await asyncio.sleep(0)

    async def _send(self, message: msgspec.Struct) -> None:
        await self._socket.send_str(msgspec.json.encode(message).decode())
