"""One connection of a member at the server: the handshake, then its calls, one after the other.

Before the handshake is done, it reads one short answer. A member's messages have a bounded length,
and each is answered before the next is read, so that nobody can pile up work. A malformed message
ends the connection.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from aiohttp import WSMsgType, web
from solders.pubkey import Pubkey

from aftermath.base.bounded import Malformed
from aftermath.base.rate_limit import place
from aftermath.localnet.node import EmbeddedNode
from aftermath.localnet.pubsub import SubscriberConnection
from aftermath.server.connection_limiter import STRANGER_SECONDS, ConnectionLimiter
from aftermath.server.handshake import NONCE_BYTES, Challenge, Denied, Welcome, proven
from aftermath.server.rpc_methods import RpcMethods
from aftermath.server.sessions import MOST_OF_ONE, ConnectedClient, Sessions

PING_SECONDS = 5.0
MOST_OWED = 4 << 20
"""Maximum unread bytes of answers and notifications: many times what a round sends."""


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

    def objection(self, identity: Pubkey) -> Denied | None:
        """Return why an identity may not connect, or None if it may."""
        if self.allowed is not None and identity not in self.allowed:
            return Denied(
                f"identity {identity} is not on this server's list of those who may join",
                "ask the server's operator to add it to the file of --allow",
            )
        if not self.sessions.room(identity):
            return Denied(
                f"identity {identity} has {MOST_OF_ONE} connections already",
                "use another identity for another member",
                for_now=True,
            )
        return None


class Session(SubscriberConnection):
    """Serves one member until it leaves, lags behind or sends a malformed message."""

    def __init__(self, state: ServerState, connection: web.RequestHandler) -> None:
        super().__init__(state.node.subscriptions, ping=PING_SECONDS, most=MOST_OWED)
        self._state = state
        self._connection = connection

    async def _read(self) -> None:
        try:
            client = await self._greeted()
        except (Malformed, TimeoutError):
            return
        if client is None:
            return
        try:
            await self._answer(client)
        finally:
            self._state.sessions.went(client, self)

    async def _greeted(self) -> ConnectedClient | None:
        """Return the client, or None if it was refused. Raises Malformed, TimeoutError."""
        genesis = str(self._state.node.bank.slots.genesis)
        challenge = Challenge(self._state.run_id, genesis, os.urandom(NONCE_BYTES).hex())
        await self._say(challenge)
        message = await self._socket.receive(STRANGER_SECONDS)
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return None
        key, peer = proven(challenge, message.data)
        identity = Pubkey(key)
        if refusal := self._state.objection(identity):
            await self._say(refusal)
            return None
        self._state.limiter.settle(self._connection)
        await self._say(Welcome())
        return self._state.sessions.came(identity, peer, self)

    async def _answer(self, client: ConnectedClient) -> None:
        sessions = self._state.sessions
        methods = self._state.methods.of_connection(
            client.identity,
            place(self._transport),
            self,
            lambda at: sessions.announce(client, at, self),
            lambda will: sessions.keep(client, will),
        )
        rpc = self._state.node.rpc(methods)
        async for message in self._socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            sessions.heard()
            data = message.data.encode() if isinstance(message.data, str) else message.data
            if data.lstrip()[:1] != b"{":  # a batch would be one message with a lot of work
                return
            reply = await rpc.answer(data)
            if reply:
                self.put(reply.decode())
            # a member whose messages never pause must not keep the others waiting
            await asyncio.sleep(0)

    async def _say(self, message: msgspec.Struct) -> None:
        await self._socket.send_str(msgspec.json.encode(message).decode())
