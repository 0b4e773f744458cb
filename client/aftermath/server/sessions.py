"""Track the connected identities, distribute their addresses, and withdraw those that left.

An identity is gone after `ABSENCE_SECONDS` without a connection. Then the server drops its
addresses and sends its withdraw transaction, if the server withdraws members. If no identity sent
anything in that time, the server assumes that it was offline itself. It then waits for the next
message and gives every identity `RETURN_SECONDS` to reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from solders.pubkey import Pubkey

from aftermath.base.concurrency import Pulse, cancel
from aftermath.base.rate_limit import TokenBucket
from aftermath.p2p.discovery import Whereabouts
from aftermath.server.rpc_methods import peer_entry

log = logging.getLogger(__name__)

ABSENCE_SECONDS = 5.0
"""Seconds without a connection after which an identity is gone."""
RETURN_SECONDS = 15.0
"""Seconds that identities have to reconnect after the server was offline."""
MAX_CONNECTIONS_PER_IDENTITY = 4
"""Two connections of a member, and two that its previous process has not closed yet."""

LOG_LINES_BURST = 600.0
LOG_LINES_PER_SECOND = 0.2
"""Rate limit of log lines about connections: a burst, then lines per second."""


class PushConnection(Protocol):
    """A connection over which an identity receives messages."""

    def put(self, text: str) -> None:
        """Queue a message."""


@dataclass(eq=False)
class ConnectedClient:
    """An identity with its connections, its addresses and its withdraw transaction."""

    identity: Pubkey
    peer: bytes
    connections: set[PushConnection] = field(default_factory=set)
    whereabouts: Whereabouts | None = None
    announcer: PushConnection | None = None
    """The connection that announced `whereabouts`. It receives the addresses of the others."""
    withdraw_transaction: bytes | None = None
    expiry: asyncio.Task[None] | None = None
    """Task that removes the client, while it has no connection."""


class Sessions:
    """The connected identities, with their addresses and withdraw transactions.

    `send` sends the withdraw transaction of an identity. If it is None, nobody is withdrawn.
    """

    def __init__(self, send: Callable[[Pubkey, bytes], Awaitable[None]] | None) -> None:
        self._send_withdrawal = send
        self._clients: dict[Pubkey, ConnectedClient] = {}
        self._message_pulse = Pulse()
        self._last_message = float("-inf")
        self._log_limit = TokenBucket(time.monotonic, LOG_LINES_PER_SECOND, LOG_LINES_BURST)
        self._unlogged = 0

    def is_connected(self, identity: Pubkey) -> bool:
        """Return whether an identity has a connection now."""
        client = self._clients.get(identity)
        return client is not None and bool(client.connections)

    @property
    def count(self) -> int:
        """Return the number of identities with a connection."""
        return sum(bool(client.connections) for client in self._clients.values())

    def has_room(self, identity: Pubkey) -> bool:
        """Return whether an identity may have one more connection."""
        client = self._clients.get(identity)
        return client is None or len(client.connections) < MAX_CONNECTIONS_PER_IDENTITY

    def record_message(self) -> None:
        """Record that a connected identity has sent something."""
        self._last_message = time.monotonic()
        self._message_pulse.fire()

    def add(self, identity: Pubkey, peer: bytes, connection: PushConnection) -> ConnectedClient:
        """Add a connection of an identity that completed the handshake. Return its client."""
        self.record_message()
        client = self._clients.setdefault(identity, ConnectedClient(identity, peer))
        if client.expiry is not None:
            client.expiry.cancel()
            client.expiry = None
        if client.peer != peer:
            self._publish(client, None)
            client.peer = peer
        if not client.connections:
            self._log_presence(identity, "connected")
        client.connections.add(connection)
        return client

    def remove(self, client: ConnectedClient, connection: PushConnection) -> None:
        """Remove a connection that ended."""
        client.connections.discard(connection)
        if client.announcer is connection:
            client.announcer = None
        if not client.connections:
            client.expiry = asyncio.create_task(self._expire(client))

    def announce(
        self, client: ConnectedClient, whereabouts: Whereabouts, connection: PushConnection
    ) -> list[Mapping[str, Any]]:
        """Publish a client's addresses to the others. Return the addresses of the others.

        From now on, `connection` receives their changes.
        """
        client.announcer = connection
        if client.whereabouts != whereabouts:
            self._publish(client, whereabouts)
        return [
            peer_entry(other.peer, other.whereabouts)
            for other in self._clients.values()
            if other is not client and other.whereabouts is not None
        ]

    def set_withdraw_transaction(self, client: ConnectedClient, transaction: bytes) -> None:
        """Store the transaction to send once the client is gone."""
        client.withdraw_transaction = transaction

    async def close(self) -> None:
        """Cancel all pending withdrawals: a stopping server withdraws nobody."""
        await cancel(
            [client.expiry for client in self._clients.values() if client.expiry is not None]
        )

    def _log_presence(self, identity: Pubkey, presence: str) -> None:
        """Log that an identity is "connected" or "gone", within the rate limit."""
        if not self._log_limit.try_take():
            self._unlogged += 1
            return
        also = (
            f"; {self._unlogged} earlier arrivals and departures not shown"
            if self._unlogged
            else ""
        )
        log.info("%s is %s%s", identity, presence, also)
        self._unlogged = 0

    def _publish(self, client: ConnectedClient, whereabouts: Whereabouts | None) -> None:
        """Store a client's addresses (None: it has none) and send them to the others."""
        client.whereabouts = whereabouts
        notification = {
            "jsonrpc": "2.0",
            "method": "whereaboutsNotification",
            "params": peer_entry(client.peer, whereabouts),
        }
        text = msgspec.json.encode(notification).decode()
        for other in self._clients.values():
            if other is not client and other.announcer is not None:
                other.announcer.put(text)

    async def _wait_until_gone(self) -> None:
        """Wait until the absence time has passed while the server was online.

        A message of any identity shows that the server is online.
        """
        patience = ABSENCE_SECONDS
        since = time.monotonic()
        while True:
            await asyncio.sleep(patience)
            if self._last_message > since:
                return
            await self._message_pulse.wait()
            patience = RETURN_SECONDS
            since = self._last_message

    async def _expire(self, client: ConnectedClient) -> None:
        """Remove and withdraw a client that does not reconnect in time."""
        await self._wait_until_gone()
        client.expiry = None
        self._log_presence(client.identity, "gone")
        if client.whereabouts is not None:
            self._publish(client, None)
        self._clients.pop(client.identity, None)
        if self._send_withdrawal is not None and client.withdraw_transaction is not None:
            await self._send_withdrawal(client.identity, client.withdraw_transaction)
