"""Share a data server's slots and read turns fairly between client addresses.

A client that waits for a reply keeps its slot while another client of its address is idle.
Otherwise a client that opens connections quickly would disconnect waiting members.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from aftermath.base.concurrency import Worker
from aftermath.base.rate_limit import fullest

T = TypeVar("T")

FRESH_SECONDS = 1.0
"""Seconds in which a client may send its next request before it can lose its slot."""


@dataclass(eq=False)
class DataClient:
    """One connection, served by `task`, from `address`."""

    task: asyncio.Task[None]
    address: str
    awaits_reply: bool = False
    """Whether the client waits for a reply."""
    unread: int = 0
    """Bytes of the reply that is being sent."""
    last_request: float = 0.0
    """The time of its connection or last request, in seconds."""


class ClientSlots:
    """The connected clients: at most `slots`, and twice as many while all of them wait.

    `max_unread`: bytes of unreceived replies of all clients together; one reply may be larger.
    `clock` returns seconds.
    """

    def __init__(self, slots: int, max_unread: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots = slots
        self._max_unread = max_unread
        self._clients: dict[DataClient, None] = {}
        """Clients in the order of their last request. The values are unused."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks that serve the clients."""
        return [client.task for client in self._clients]

    def enter(self, client: DataClient) -> bool:
        """Add a client. Return False if its own address fills all slots with waiting clients."""
        client.last_request = self._clock()
        self._shrink(self._slots - 1, FRESH_SECONDS)
        self._shrink(2 * self._slots - 1, 0.0)
        if (
            len(self._clients) >= 2 * self._slots
        ):  # all clients of the fullest address wait for replies
            most = fullest(other.address for other in self._clients)
            if most == client.address:
                return False
            self._cut(next(other for other in reversed(self._clients) if other.address == most))
        self._clients[client] = None
        return True

    def request_received(self, client: DataClient) -> None:
        """Record a request: the client now waits for a reply."""
        client.awaits_reply = True
        client.last_request = self._clock()
        self._clients[client] = self._clients.pop(client, None)

    def reply_started(self, client: DataClient, size: int) -> None:
        """Record that a reply of `size` bytes is being sent. Disconnect slow clients to
        make room.
        """
        client.awaits_reply = False
        while (
            unread := Counter({other: other.unread for other in self._clients if other.unread})
        ) and (unread.total() + size > self._max_unread):
            by_address: Counter[str] = Counter()
            for other, bytes_ in unread.items():
                by_address[other.address] += bytes_
            most = by_address.most_common(1)[0][0]
            self._cut(next(other for other in unread if other.address == most))
        client.unread = size

    def reply_sent(self, client: DataClient) -> None:
        """Record that the client received its whole reply."""
        client.unread = 0
        self._shrink(self._slots, FRESH_SECONDS)

    def leave(self, client: DataClient) -> None:
        """Remove a client whose connection closed."""
        self._clients.pop(client, None)

    def _shrink(self, most: int, fresh: float) -> None:
        """Disconnect idle clients of the fullest address until at most `most` remain.

        A client that connected or sent a request less than `fresh` seconds ago stays.
        """
        while len(self._clients) > most:
            crowded = fullest(other.address for other in self._clients)
            oldest = next(
                (
                    other
                    for other in self._clients
                    if other.address == crowded and not other.awaits_reply
                ),
                None,
            )
            if oldest is None or self._clock() - oldest.last_request < fresh:
                return
            self._cut(oldest)

    def _cut(self, client: DataClient) -> None:
        del self._clients[client]
        client.task.cancel()


class ReadTurns:
    """Runs one read at a time. Addresses take turns: many requests of one delay another by one
    read.
    """

    def __init__(self, read: Worker) -> None:
        self._read = read
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def __call__(self, address: str, function: Callable[[], T]) -> T:
        """Return the result of `function`, called when it is the turn of `address`."""
        if self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(address, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the turn was granted before the cancellation
                    self._next()
                raise
        self._busy = True
        try:
            return await self._read(function)
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            address, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[address] = turns  # the address goes behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
