"""Connected identities: their connections, their peer addresses, and what follows when they leave.

An identity is gone after `GRACE` seconds without a connection. Then the server drops its addresses
and, if it withdraws members, sends the transaction that the member signed for this. If nobody was
heard since, the server's own line is down: it withdraws nobody, and everybody gets `RETURN` seconds
to come back.
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

from aftermath.base.bucket import Bucket
from aftermath.base.wait import Pulse, cancel
from aftermath.central.gate import shown
from aftermath.p2p.discovery import Whereabouts

log = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds without a connection after which an identity is gone."""
RETURN = 15.0
"""The same after the server's own line was down: longer than a member ever takes to notice that it is back."""
MOST_OF_ONE = 4
"""Connections of one identity: two of a member, and as many of the one before it that have not ended yet."""

LINES, LINES_A_SECOND = 600.0, 0.2
"""Rate limit of log lines about arrivals and departures: burst, then lines per second."""


class Outlet(Protocol):
    """A connection over which an identity receives messages."""

    def put(self, text: str) -> None: ...


@dataclass(eq=False)
class Guest:
    """One identity."""

    identity: Pubkey
    peer: bytes
    outlets: set[Outlet] = field(default_factory=set)
    at: Whereabouts | None = None
    told: Outlet | None = None
    """The connection that said so, which hears where the others are."""
    will: bytes | None = None
    leaving: asyncio.Task[None] | None = None


class Presence:
    """All identities that are here. `send`: delivers a last will; None if members are not withdrawn."""

    def __init__(self, send: Callable[[Pubkey, bytes], Awaitable[None]] | None) -> None:
        self._send = send
        self._guests: dict[Pubkey, Guest] = {}
        self._heard, self._heard_at = Pulse(), float("-inf")
        self._lines, self._untold = Bucket(time.monotonic, LINES_A_SECOND, LINES), 0

    def here(self, identity: Pubkey) -> bool:
        """Whether an identity has a connection now."""
        guest = self._guests.get(identity)
        return guest is not None and bool(guest.outlets)

    @property
    def count(self) -> int:
        """Identities with a connection."""
        return sum(bool(guest.outlets) for guest in self._guests.values())

    def room(self, identity: Pubkey) -> bool:
        """Whether an identity may have one more connection."""
        guest = self._guests.get(identity)
        return guest is None or len(guest.outlets) < MOST_OF_ONE

    def heard(self) -> None:
        """Record that a connected identity has sent something."""
        self._heard_at = time.monotonic()
        self._heard.fire()

    def came(self, identity: Pubkey, peer: bytes, outlet: Outlet) -> Guest:
        """A connection of an identity that proved itself."""
        self.heard()
        guest = self._guests.setdefault(identity, Guest(identity, peer))
        if guest.leaving is not None:
            guest.leaving.cancel()
            guest.leaving = None
        if guest.peer != peer:
            self._moved(guest, None)
            guest.peer = peer
        if not guest.outlets:
            self._tell(identity, "here")
        guest.outlets.add(outlet)
        return guest

    def went(self, guest: Guest, outlet: Outlet) -> None:
        """A connection has ended."""
        guest.outlets.discard(outlet)
        if guest.told is outlet:
            guest.told = None
        if not guest.outlets:
            guest.leaving = asyncio.create_task(self._bury(guest))

    def announce(self, guest: Guest, at: Whereabouts, outlet: Outlet) -> list[Mapping[str, Any]]:
        """Where a guest is, which the others are told; where these are, and from now on over this connection."""
        guest.told = outlet
        if guest.at != at:
            self._moved(guest, at)
        return [shown(one.peer, one.at) for one in self._guests.values() if one is not guest and one.at is not None]

    def keep(self, guest: Guest, will: bytes) -> None:
        """What to send once the guest is gone, instead of what it left before."""
        guest.will = will

    async def close(self) -> None:
        """Nobody is withdrawn because the server ends."""
        await cancel([guest.leaving for guest in self._guests.values() if guest.leaving is not None])

    def _tell(self, identity: Pubkey, where: str) -> None:
        if not self._lines.spare():
            self._untold += 1
            return
        also = f"; {self._untold} earlier arrivals and departures not shown" if self._untold else ""
        log.info("%s is %s%s", identity, where, also)
        self._untold = 0

    def _moved(self, guest: Guest, at: Whereabouts | None) -> None:
        guest.at = at
        said = {"jsonrpc": "2.0", "method": "whereaboutsNotification", "params": shown(guest.peer, at)}
        text = msgspec.json.encode(said).decode()
        for one in self._guests.values():
            if one is not guest and one.told is not None:
                one.told.put(text)

    async def _absent(self) -> None:
        """Until who has no connection since now is gone, and not the server."""
        patience, since = GRACE, time.monotonic()
        while True:
            await asyncio.sleep(patience)
            if self._heard_at > since:
                return
            await self._heard.wait()
            patience, since = RETURN, self._heard_at

    async def _bury(self, guest: Guest) -> None:
        await self._absent()
        guest.leaving = None
        self._tell(guest.identity, "gone")
        if guest.at is not None:
            self._moved(guest, None)
        self._guests.pop(guest.identity, None)
        if self._send is not None and guest.will is not None:
            await self._send(guest.identity, guest.will)
