"""Connected identities: their connections, their peer addresses, and what follows when they leave.

An identity is gone after `GRACE` seconds without a connection. Then the server drops its addresses
and, if it withdraws members, sends the transaction that the member signed for this. If no identity
sent anything since, the server's own connection is down: it withdraws nobody, and all identities
get `RETURN` seconds to come back.
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
from aftermath.server.rpc_methods import shown

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds without a connection after which an identity is gone."""
RETURN = 15.0
"""Grace in seconds after the server's own outage: members need less to notice its return."""
MOST_OF_ONE = 4
"""Maximum connections of one identity: two, and two of its previous process that have not ended."""

LINES = 600.0
LINES_A_SECOND = 0.2
"""Rate limit of log lines about arrivals and departures: burst, then lines per second."""


class Outlet(Protocol):
    """A connection over which an identity receives messages."""

    def put(self, text: str) -> None: ...


@dataclass(eq=False)
class ConnectedClient:
    """One identity."""

    identity: Pubkey
    peer: bytes
    outlets: set[Outlet] = field(default_factory=set)
    at: Whereabouts | None = None
    told: Outlet | None = None
    """The connection that announced `at`. It receives the addresses of the others."""
    will: bytes | None = None
    leaving: asyncio.Task[None] | None = None


class Sessions:
    """All connected identities. `send` sends a withdraw transaction; None withdraws nobody."""

    def __init__(self, send: Callable[[Pubkey, bytes], Awaitable[None]] | None) -> None:
        self._send = send
        self._clients: dict[Pubkey, ConnectedClient] = {}
        self._heard = Pulse()
        self._heard_at = float("-inf")
        self._lines = TokenBucket(time.monotonic, LINES_A_SECOND, LINES)
        self._untold = 0

    def here(self, identity: Pubkey) -> bool:
        """Return whether an identity has a connection now."""
        client = self._clients.get(identity)
        return client is not None and bool(client.outlets)

    @property
    def count(self) -> int:
        """Return the number of identities with a connection."""
        return sum(bool(client.outlets) for client in self._clients.values())

    def room(self, identity: Pubkey) -> bool:
        """Return whether an identity may have one more connection."""
        client = self._clients.get(identity)
        return client is None or len(client.outlets) < MOST_OF_ONE

    def heard(self) -> None:
        """Record that a connected identity has sent something."""
        self._heard_at = time.monotonic()
        self._heard.fire()

    def came(self, identity: Pubkey, peer: bytes, outlet: Outlet) -> ConnectedClient:
        """Add a connection of an identity that completed the handshake. Return its client."""
        self.heard()
        client = self._clients.setdefault(identity, ConnectedClient(identity, peer))
        if client.leaving is not None:
            client.leaving.cancel()
            client.leaving = None
        if client.peer != peer:
            self._moved(client, None)
            client.peer = peer
        if not client.outlets:
            self._tell(identity, "here")
        client.outlets.add(outlet)
        return client

    def went(self, client: ConnectedClient, outlet: Outlet) -> None:
        """Remove a connection that ended."""
        client.outlets.discard(outlet)
        if client.told is outlet:
            client.told = None
        if not client.outlets:
            client.leaving = asyncio.create_task(self._expire(client))

    def announce(
        self, client: ConnectedClient, at: Whereabouts, outlet: Outlet
    ) -> list[Mapping[str, Any]]:
        """Tell the other clients where this one is. Return where they are.

        From now on, `outlet` receives changes of their addresses.
        """
        client.told = outlet
        if client.at != at:
            self._moved(client, at)
        return [
            shown(one.peer, one.at)
            for one in self._clients.values()
            if one is not client and one.at is not None
        ]

    def keep(self, client: ConnectedClient, will: bytes) -> None:
        """Replace the transaction to send once the client is gone."""
        client.will = will

    async def close(self) -> None:
        """Cancel all withdrawals: the end of the server withdraws nobody."""
        await cancel(
            [client.leaving for client in self._clients.values() if client.leaving is not None]
        )

    def _tell(self, identity: Pubkey, where: str) -> None:
        if not self._lines.spare():
            self._untold += 1
            return
        also = f"; {self._untold} earlier arrivals and departures not shown" if self._untold else ""
        log.info("%s is %s%s", identity, where, also)
        self._untold = 0

    def _moved(self, client: ConnectedClient, at: Whereabouts | None) -> None:
        client.at = at
        said = {
            "jsonrpc": "2.0",
            "method": "whereaboutsNotification",
            "params": shown(client.peer, at),
        }
        text = msgspec.json.encode(said).decode()
        for one in self._clients.values():
            if one is not client and one.told is not None:
                one.told.put(text)

    async def _absent(self) -> None:
        """Return once the client counts as gone, and the server's own connection works."""
        patience = GRACE
        since = time.monotonic()
        while True:
            await asyncio.sleep(patience)
            if self._heard_at > since:
                return
            await self._heard.wait()
            patience = RETURN
            since = self._heard_at

    async def _expire(self, client: ConnectedClient) -> None:
        await self._absent()
        client.leaving = None
        self._tell(client.identity, "gone")
        if client.at is not None:
            self._moved(client, None)
        self._clients.pop(client.identity, None)
        if self._send is not None and client.will is not None:
            await self._send(client.identity, client.will)
