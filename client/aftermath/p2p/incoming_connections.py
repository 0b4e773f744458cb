"""Accept incoming connections: limits, handshake, membership check and greeting.

No connection and no stranger can keep the others out. Before a handshake nobody has a key, so the
limits apply to addresses. An IPv6 /64 counts as one address, because a host with one address in it
has all of them. One greeting per member is read at a time. A peer that sends more than a greeting
is closed and banned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Container, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import iroh

from aftermath.base.concurrency import first_of
from aftermath.base.rate_limit import TokenBucket, network_of
from aftermath.p2p.lanes import lanes_for
from aftermath.p2p.limits import (
    CONNECTION_BURST,
    CONNECTION_RATE,
    REMEMBERED_PEERS,
    Bans,
    LogLimits,
)
from aftermath.p2p.peer_connection import (
    SHORTEST_PAUSE_S,
    Link,
    Peer,
    answer_greeting,
    close_connection,
    hear_greeting,
    only_a_greeting,
)
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.wire import LANE_ALPN, Code, ProtocolViolation, cause

log = logging.getLogger(__name__)
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]

HANDSHAKE_S = 10.0
MAX_HANDSHAKES = 64
MAX_HANDSHAKES_OF_ADDRESS = 16
ADDRESS_RATE = 10.0
ADDRESS_BURST = 300.0
"""The burst admits 256 members on one machine or behind one router."""
# Connections per second that get an answer. The rest are dropped: that is cheaper, and QUIC retries
# by itself, while a refusal would end an honest dial.
LOOKED_AT_RATE = 100.0
LOOKED_AT_BURST = 600.0
GIVE_WAY_S = 2.0
"""Time that a handshake gets, even if others wait."""
# Connections per second that are dropped. More wait in QUIC, which can hold tens of thousands.
DROP_RATE = 1000.0
DROP_BURST = 1000.0
RELAYED = "relayed"
"""The key for limits that all relayed peers share if they are not members.

A limit per peer key would not help, because anyone can make keys.
"""
REMEMBERED = 1024
"""Maximum number of addresses whose rates are remembered."""


@dataclass(eq=False)
class Handshake:
    """A handshake in progress. `give_up` ends it."""

    where: str
    started: float
    give_up: Callable[[], object] = lambda: None


class AcceptLimits:
    """Limits the handshakes in progress, in total and per address.

    `clock` returns seconds and never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._inside: dict[str, deque[Handshake]] = {}
        """Handshakes by address, the oldest first."""
        self._rates: OrderedDict[str, TokenBucket] = OrderedDict()
        self._ports: OrderedDict[bytes, str] = OrderedDict()
        self._members: dict[str, TokenBucket] = {}
        self.looks = TokenBucket(clock, LOOKED_AT_RATE, LOOKED_AT_BURST)
        self.drops = TokenBucket(clock, DROP_RATE, DROP_BURST)

    @property
    def busy(self) -> bool:
        """Return whether new connections must prove that they receive our packets.

        Otherwise packets with forged source addresses would lock everyone out.
        """
        return self._total() >= MAX_HANDSHAKES // 2

    def remember(self, member: bytes, port: str) -> None:
        """Record the address and port of a connected member."""
        rate = self._members.pop(self._ports.pop(member, ""), None)
        for earlier in [peer for peer, where in self._ports.items() if where == port]:
            del self._ports[earlier]
        self._ports[member] = port
        self._members[port] = rate or TokenBucket(self._clock, CONNECTION_RATE, CONNECTION_BURST)
        if len(self._ports) > REMEMBERED_PEERS:
            self._members.pop(self._ports.popitem(last=False)[1], None)

    def invites(self, port: str) -> bool:
        """Return whether a member was last connected from there and has not reconnected too often.

        Otherwise a peer that shares the member's address could lock the member out after a lost
        connection. Anyone may claim the port, so it must be proven first.
        """
        return port in self._members and not self._members[port].next_in()

    def lets_in(self, where: str) -> bool:
        """Return whether an unproven handshake from this address would be accepted now."""
        room = not self.busy and len(self._inside.get(where, ())) < MAX_HANDSHAKES_OF_ADDRESS
        return room and not self.looks.next_in() and not self._rate(where).next_in()

    def enter(self, where: str) -> Handshake | None:
        """Start a handshake from this address. Return None if there is no slot."""
        active = len(self._inside.get(where, ()))
        full = self._total() >= MAX_HANDSHAKES
        oldest = self._gives_way(where, active) if full else None
        if (
            active >= MAX_HANDSHAKES_OF_ADDRESS
            or (full and oldest is None)
            or not self._rate(where).try_take()
        ):
            return None
        if oldest is not None:
            self.leave(oldest)
            oldest.give_up()
        handshake = Handshake(where, self._clock())
        self._inside.setdefault(where, deque()).append(handshake)
        return handshake

    def _gives_way(self, where: str, active: int) -> Handshake | None:
        """Return the handshake to evict for a new one from `where`, or None.

        It is the oldest one of the address with the most handshakes, if that address has more than
        `where`. Otherwise a few silent addresses could hold all slots. If the difference is one,
        only a late handshake is evicted, so that members that start together do not evict each
        other. A member's last port evicts handshakes of strangers at once.
        """
        strangers = [of for place, of in self._inside.items() if place not in self._members]
        at_once = where in self._members and bool(strangers)
        among = strangers if at_once else self._inside.values()
        most = max(among, key=lambda of: (len(of), -of[0].started))
        late = at_once or self._clock() >= most[0].started + GIVE_WAY_S
        return most[0] if len(most) > active + (not late) else None

    def leave(self, handshake: Handshake) -> None:
        """End a handshake. A second call does nothing."""
        of_place = self._inside.get(handshake.where, deque())
        if handshake in of_place:
            of_place.remove(handshake)
        if not of_place:
            self._inside.pop(handshake.where, None)

    def _total(self) -> int:
        return sum(map(len, self._inside.values()))

    def _rate(self, where: str) -> TokenBucket:
        if where in self._members:
            return self._members[where]
        if where not in self._rates:
            self._rates[where] = TokenBucket(self._clock, ADDRESS_RATE, ADDRESS_BURST)
        self._rates.move_to_end(where)
        if len(self._rates) > REMEMBERED:
            self._rates.popitem(last=False)
        return self._rates[where]


def place_of(address: iroh.IncomingAddr, members: Container[bytes]) -> str:
    """Return the key for limits: the IP network, or on a relay the proven key of a member."""
    if isinstance(address, iroh.IncomingAddr.RELAY):
        return (
            str(address.endpoint_id)
            if bytes(address.endpoint_id.to_bytes()) in members
            else RELAYED
        )
    if not isinstance(address, iroh.IncomingAddr.IP):
        return RELAYED
    return network_of(address.addr.rpartition(":")[0].strip("[]"))


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
                if not is_member and not self.limits.looks.try_take():
                    await self._turn_away(incoming.ignore)
                elif (
                    (is_member or self.limits.busy)
                    and port
                    and not await incoming.remote_addr_validated()
                ):
                    await self._pace.throttle(self.limits.drops)
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
        await self._pace.throttle(self.limits.drops)
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
            self._pace.events["failed_handshakes"] += 1
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
        except ProtocolViolation as violation:
            if connection.alpn() == LANE_ALPN and contact.link is not None:
                contact.link.violated(violation)
            else:
                self._pace.events["violations"] += 1
                self._bans.offended(peer)
            raise
        finally:
            if contact.greeting is connection:
                contact.greeting = None
        link = Link(peer, connection, peer, instance, self._pace.clock(), contact.quota)
        if connection.alpn() == LANE_ALPN:
            link.main = contact.link
            if link.close_without_room(lanes_for(len(self._peers))):
                return
        elif contact.link is not None and not link.supersedes(contact.link):
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
        if contact.quota.connections.try_take():
            return ""
        if not contact.quota.excess.try_take():
            if contact.link is None:
                self._bans.offended(peer)
            else:
                contact.link.violated(ProtocolViolation("connecting too often for too long"))
        return "connecting too often"
