"""One connection of a member at the server: the greeting, then its calls, one after the other.

Decided: nothing is read of a stranger but one short answer within seconds; of a member, messages of bounded length,
each answered before the next is read, so that nobody can pile up work. Whatever breaks the form costs the connection.
Where strangers are too many, who has been one for longest makes room for the next (`base.crowding`): a member
answers at once, and else a few who say nothing would keep everybody out.
"""

from __future__ import annotations

import asyncio
import os

import msgspec
from aiohttp import WSMsgType
from solders.pubkey import Pubkey

from aftermath.base.bounded import Malformed
from aftermath.base.crowding import makes_room, place
from aftermath.base.wait import first_of
from aftermath.central.doorway import SILENT_SECONDS
from aftermath.central.gate import Gate
from aftermath.central.greeting import NONCE_BYTES, Challenge, Denied, Welcome, proven
from aftermath.central.presence import MOST_OF_ONE, Guest, Presence
from aftermath.localnet.node import Node
from aftermath.localnet.pubsub import Connection

MOST_STRANGERS = 64
GREETING_SECONDS = SILENT_SECONDS
PING_SECONDS = 5.0
MOST_OWED = 4 << 20
"""Bytes of answers and news that a member has not taken: many times what it is told in a round."""


class House:
    """What all connections share: the run, who may come, who is here."""

    def __init__(
        self, node: Node, gate: Gate, presence: Presence, run_id: str, allowed: frozenset[Pubkey] | None
    ) -> None:
        self.node, self.gate, self.presence = node, gate, presence
        self.run_id, self.allowed = run_id, allowed
        self._strangers: dict[Session, str] = {}
        """Connections that have not proven an identity yet, in the order in which they came, and from where."""

    def arrives(self, stranger: Session, where: str) -> None:
        """Register a connection without a proven identity. Evict one if there are too many."""
        if len(self._strangers) >= MOST_STRANGERS:
            self.settles(longest := makes_room(self._strangers))
            longest.unwanted.set()
        self._strangers[stranger] = where

    def settles(self, stranger: Session) -> None:
        """It has proven one, or is none any more."""
        self._strangers.pop(stranger, None)

    def objection(self, identity: Pubkey) -> Denied | None:
        """Why an identity may not come in, if so."""
        if self.allowed is not None and identity not in self.allowed:
            return Denied(
                f"identity {identity} is not on this server's list of those who may join",
                "ask the server's operator to add it to the file of --allow",
            )
        if not self.presence.room(identity):
            return Denied(
                f"identity {identity} has {MOST_OF_ONE} connections already",
                "use another identity for another member",
                for_now=True,
            )
        return None


class Session(Connection):
    """Serves one member until it goes, lags or breaks the form."""

    def __init__(self, house: House) -> None:
        super().__init__(house.node.subscriptions, ping=PING_SECONDS, most=MOST_OWED)
        self._house = house
        self.unwanted = asyncio.Event()
        """Set when it has to make room before it has proven who is there."""

    async def _read(self) -> None:
        self._house.arrives(self, place(self._transport))
        try:
            guest = await first_of(self._greeted(), self._makes_room())
        except (Malformed, TimeoutError):
            return
        finally:
            self._house.settles(self)
        if guest is None:
            return
        try:
            await self._answer(guest)
        finally:
            self._house.presence.went(guest, self)

    async def _makes_room(self) -> None:
        await self.unwanted.wait()
        self._abort()  # it is not waited for: who says nothing may not say goodbye either

    async def _greeted(self) -> Guest | None:
        """Return the client, or None if it was sent away. Raises Malformed, TimeoutError."""
        genesis = str(self._house.node.bank.slots.genesis)
        challenge = Challenge(self._house.run_id, genesis, os.urandom(NONCE_BYTES).hex())
        await self._say(challenge)
        message = await self._socket.receive(GREETING_SECONDS)
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return None
        key, peer = proven(challenge, message.data)
        identity = Pubkey(key)
        if refusal := self._house.objection(identity):
            await self._say(refusal)
            return None
        await self._say(Welcome())
        return self._house.presence.came(identity, peer, self)

    async def _answer(self, guest: Guest) -> None:
        presence = self._house.presence
        methods = self._house.gate.methods(
            guest.identity,
            place(self._transport),
            self,
            lambda at: presence.announce(guest, at, self),
            lambda will: presence.keep(guest, will),
        )
        rpc = self._house.node.rpc(methods)
        async for message in self._socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            presence.heard()
            data = message.data.encode() if isinstance(message.data, str) else message.data
            if data.lstrip()[:1] != b"{":  # batches would be one message of much work
                return
            reply = await rpc.answer(data)
            if reply:
                self.put(reply.decode())
            await asyncio.sleep(0)  # a member whose messages never pause must not keep the others waiting

    async def _say(self, message: msgspec.Struct) -> None:
        await self._socket.send_str(msgspec.json.encode(message).decode())
