"""Accept incoming connections: handshake, membership check and greeting.

No connection and no stranger can keep the others out. One greeting per member is read at a time. A
peer that sends more than a greeting is closed and banned.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import iroh

from aftermath.base.concurrency import first_of
from aftermath.p2p.accept_limits import AcceptLimits, Handshake, place_of
from aftermath.p2p.limits import Bans
from aftermath.p2p.link import (
    Link,
    answer_greeting,
    close_connection,
    hear_greeting,
    only_a_greeting,
)
from aftermath.p2p.log_limits import LogLimits
from aftermath.p2p.peer import SHORTEST_PAUSE_S, Peer
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.wire import Code, ProtocolViolation, cause

HANDSHAKE_S = 10.0

log = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class IncomingConnections:
    """Incoming connections of one endpoint. `offer` takes greeted links, `spawn` background
    tasks.
    """

    def __init__(
        self,
        endpoint: iroh.Endpoint,
        instance: bytes,
        peers: Mapping[bytes, Peer],
        bans: Bans,
        pace: PeerMeasurements,
        offer: Callable[[Link], None],
        spawn: Spawn,
    ) -> None:
        self._endpoint = endpoint
        self._instance = instance
        self._peers = peers
        self._bans = bans
        self._pace = pace
        self._offer = offer
        self._spawn = spawn
        self._log_limits = LogLimits(log)
        self.limits = AcceptLimits(pace.clock)

    async def accept(self) -> None:
        """Take incoming connections until the endpoint closes."""
        while True:
            try:
                incoming = await self._endpoint.accept_next()
                if incoming is None:
                    return
                address = await incoming.remote_addr()
                port = address.addr if isinstance(address, iroh.IncomingAddr.IP) else ""
                address_key = place_of(address, self._peers)
                is_member = self.limits.invites(port) and not self.limits.lets_in(address_key)
                if not is_member and not self.limits.looks.spare():
                    await self._turn_away(incoming.ignore)
                elif (
                    (is_member or self.limits.busy)
                    and port
                    and not await incoming.remote_addr_validated()
                ):
                    await self._pace.throttle(self.limits.leavings)
                    await incoming.retry()
                elif (
                    handshake := self.limits.enter(port if is_member else address_key)
                ) is not None:
                    handshake.give_up = self._spawn(self._welcome(incoming, handshake, port)).cancel
                else:
                    # a member that is refused dials again sooner than QUIC would
                    await self._turn_away(incoming.refuse)
            except Exception as error:  # a stranger's error must not keep others out
                log.debug("accepting a connection failed: %s", cause(error))
                await asyncio.sleep(SHORTEST_PAUSE_S)

    async def _turn_away(self, how: Callable[[], Awaitable[None]]) -> None:
        await self._pace.throttle(self.limits.leavings)
        self._pace.events["refused"] += 1
        await how()

    async def _welcome(self, incoming: iroh.Incoming, handshake: Handshake, port: str) -> None:
        """Admit a member, or close the connection with a reason."""
        connection = None
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                connection = await (await incoming.accept()).connect()
                await self._receive(connection, port)
        except asyncio.CancelledError:
            if connection is not None:
                close_connection(connection, Code.STALLED, "others wait")
            raise
        except Exception as error:  # it ends only this connection
            expected = isinstance(error, (iroh.IrohError, ProtocolViolation, TimeoutError))
            log.debug("an incoming connection failed: %s", cause(error))
            if not expected:
                self._log_limits.failure("welcoming", b"", error)
            if connection is not None:
                close_connection(connection, Code.VIOLATION, "no greeting")
        finally:
            self.limits.leave(handshake)

    async def _receive(self, connection: iroh.Connection, port: str) -> None:
        """Check who connected, greet it, and offer the link."""
        peer = bytes(connection.remote_id().to_bytes())
        contact = self._peers.get(peer)
        objection = self._objection(peer, contact)
        if contact is None or objection:
            self._pace.events["refused"] += 1
            close_connection(connection, Code.NOT_A_MEMBER, objection)
            return
        if port:
            self.limits.remember(peer, port)
        if contact.greeting is not None:
            close_connection(contact.greeting, Code.DUPLICATE, "another one came meanwhile")
        contact.greeting = connection
        try:
            instance, stream = await first_of(
                hear_greeting(connection), only_a_greeting(connection)
            )
        except ProtocolViolation:
            self._pace.events["violations"] += 1
            self._bans.offended(peer)
            raise
        finally:
            if contact.greeting is connection:
                contact.greeting = None
        link = Link(peer, connection, peer, instance, self._pace.clock(), contact.quota)
        if contact.link is not None and not link.supersedes(contact.link):
            link.close(Code.DUPLICATE, "already connected")
            return
        await answer_greeting(stream, self._instance)
        self._offer(link)

    def _objection(self, peer: bytes, contact: Peer | None) -> str:
        """Return why this peer may not connect now, or an empty string."""
        if contact is None:
            return "not a member of this run"
        if self._bans.seconds_left(peer):
            return "banned for breaking the protocol"
        if contact.quota.connections.spare():
            return ""
        if not contact.quota.excess.spare():
            if contact.link is None:
                self._bans.offended(peer)
            else:
                contact.link.violated(ProtocolViolation("connecting too often for too long"))
        return "connecting too often"
