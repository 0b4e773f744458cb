"""What many clients of a data server share: places, and turns at reading. Addresses share both evenly.

A client that waits for its answer keeps its place as long as others of its address can give way. Without that, a
client that opens connections faster than the files are read would have every waiting member cut off.
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
"""In which a client may ask its next question before it has to make room."""


@dataclass(eq=False)
class Client:
    """One connection, served by `task`, from the address `place`."""

    task: asyncio.Task[None]
    place: str
    due: bool = False
    """Whether the server owes it an answer."""
    untaken: int = 0
    """Bytes of the answer that it is being sent."""
    since: float = 0.0
    """When it came or asked last."""


class Crowd:
    """The clients that are connected: `most` at a time, and twice as many while all of them are busy.

    `most_untaken`: bytes of answers on their way, of all clients together; one answer may be larger. `clock` returns
    seconds.
    """

    def __init__(self, most: int, most_untaken: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most = most
        self._most_untaken = most_untaken
        self._clients: dict[Client, None] = {}
        """Who asked last is last."""

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What serves them."""
        return [client.task for client in self._clients]

    def enter(self, client: Client) -> bool:
        """Let a client in. Return False if its own address has taken all places with questions."""
        client.since = self._clock()
        self._shrink(self._most - 1, FRESH_SECONDS)
        self._shrink(2 * self._most - 1, 0.0)
        if len(self._clients) >= 2 * self._most:  # all of the fullest address wait for answers
            most = fullest(one.place for one in self._clients)
            if most == client.place:
                return False
            self._cut(next(one for one in reversed(self._clients) if one.place == most))
        self._clients[client] = None
        return True

    def asked(self, client: Client) -> None:
        """It has asked, and waits for the answer."""
        client.due = True
        client.since = self._clock()
        self._clients[client] = self._clients.pop(client, None)

    def sends(self, client: Client, size: int) -> None:
        """Record that an answer of `size` bytes is being sent. Slow clients make room for it."""
        client.due = False
        while (untaken := Counter({one: one.untaken for one in self._clients if one.untaken})) and (
            untaken.total() + size > self._most_untaken
        ):
            of_place: Counter[str] = Counter()
            for one, bytes_ in untaken.items():
                of_place[one.place] += bytes_
            most = of_place.most_common(1)[0][0]
            self._cut(next(one for one in untaken if one.place == most))
        client.untaken = size

    def sent(self, client: Client) -> None:
        """It has taken its answer."""
        client.untaken = 0
        self._shrink(self._most, FRESH_SECONDS)

    def leave(self, client: Client) -> None:
        """Its connection is gone."""
        self._clients.pop(client, None)

    def _shrink(self, most: int, fresh: float) -> None:
        """Cut clients that are owed nothing, of the address with most, until there are no more than `most`.

        A client that came or asked less than `fresh` seconds ago stays.
        """
        while len(self._clients) > most:
            crowded = fullest(one.place for one in self._clients)
            oldest = next((one for one in self._clients if one.place == crowded and not one.due), None)
            if oldest is None or self._clock() - oldest.since < fresh:
                return
            self._cut(oldest)

    def _cut(self, client: Client) -> None:
        del self._clients[client]
        client.task.cancel()


class Turns:
    """Reads one at a time. Addresses take turns, so that one with many questions delays another by one read."""

    def __init__(self, read: Worker) -> None:
        self._read = read
        self._busy = False
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def __call__(self, place: str, function: Callable[[], T]) -> T:
        """Return what `function` returns once it is the turn of `place`."""
        if self._busy:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(place, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the turn had come already
                    self._next()
                raise
        self._busy = True
        try:
            return await self._read(function)
        finally:
            self._next()

    def _next(self) -> None:
        while self._waiting:
            place, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[place] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._busy = False
