"""One member's road to the nodes of the chain, in bytes and on virtual time (`chain.wire.Wire`), and what befalls it.

Decided: every message takes `latency` seconds each way. A node that refuses, limits or fails has done nothing; one
whose answer is spoilt on the way has done what it was asked. A websocket whose node is out of reach ends; one that is
mute stays open, answers pings and says nothing. What a spoilt answer holds is drawn from the road's own seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Protocol

import httpx
import msgspec
from websockets.exceptions import ConnectionClosedError

from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.localnet.pubsub import Calls
from aftermath.sim.sim_node import SimNode

_NEVER = 3600.0  # seconds for which a silent node says nothing; everybody gives up earlier
_PINGED = 10.0  # seconds after which a websocket without an answer to its ping ends
_SENDS = b'"sendTransaction"'
_ASKS_GENESIS = b'"getGenesisHash"'
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"
_OTHER_TYPES: tuple[Any, ...] = (7, "x", [], {}, True, 1.5)
_NO_HASHES: tuple[Any, ...] = ("", "null", "not a hash", 7, [], {"hash": 1}, False, "1" * 43 + "0")


class Mood(StrEnum):
    """How a node treats one member."""

    GOOD = "good"
    REFUSES = "refuses"
    """No connection."""
    SILENT = "silent"
    """Takes everything and answers nothing."""
    LIMITS = "limits"
    """429."""
    FAILS = "fails"
    """500."""
    HTML = "html"
    CUT = "cut"
    """Half of the JSON."""
    TYPES = "types"
    """Something in the JSON has another type."""
    IDS = "ids"
    """The id, and what it says, are those of another call."""
    GENESIS = "genesis"
    """Something else than a hash for the genesis hash."""
    BEHIND = "behind"
    """Answers as of ten seconds ago."""
    MUTE = "mute"
    """Its websocket says nothing."""


class Cluster(Protocol):
    """What the road leads to."""

    @property
    def node(self) -> SimNode: ...

    @property
    def latency(self) -> float: ...

    @property
    def down(self) -> bool: ...


class Road(httpx.AsyncBaseTransport):
    """One member's `Wire`, and its HTTP transport."""

    def __init__(self, cluster: Cluster, seed: int, nodes: int = 1) -> None:
        self.moods = [Mood.GOOD] * nodes
        self.replies_lost = 0
        """How many of the next transactions land although the connection breaks before the reply."""
        self._cluster = cluster
        self._random = random.Random(seed)
        self._before: dict[int, bytes] = {}
        self._sockets: set[_Socket] = set()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [endpoint(f"http://node{index}.sim:8899") for index in range(len(self.moods))]

    @property
    def down(self) -> bool:
        """Whether no node at all can be reached."""
        return all(mood is Mood.REFUSES for mood in self.moods)

    @down.setter
    def down(self, down: bool) -> None:
        self.set_moods([Mood.REFUSES if down else Mood.GOOD] * len(self.moods))

    def set_moods(self, moods: Sequence[Mood]) -> None:
        """From now on the nodes treat this member so."""
        self.moods = list(moods)
        self.broken()

    def broken(self) -> None:
        """End the websockets whose nodes are out of reach."""
        for socket in sorted(self._sockets, key=lambda socket: socket.number):
            if self.mood(socket.index) is Mood.REFUSES:
                socket.end()

    def mood(self, index: int) -> Mood:
        return Mood.REFUSES if self._cluster.down else self.moods[index]

    # --- HTTP ---------------------------------------------------------------------------------------------------

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, timeout=None, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index, body = _index(request.url.host), await request.aread()
        await asyncio.sleep(self._cluster.latency)
        mood = self.mood(index)
        if mood is Mood.REFUSES:
            raise httpx.ConnectError("refused")
        if mood is Mood.SILENT:
            await asyncio.sleep(_NEVER)
            raise httpx.ReadTimeout("silent")
        if mood in (Mood.LIMITS, Mood.FAILS):
            return httpx.Response(429 if mood is Mood.LIMITS else 500, content=b"no")
        answer = await self._cluster.node.answer(body, lagging=mood is Mood.BEHIND)
        if self.replies_lost and _SENDS in body:
            self.replies_lost -= 1
            raise httpx.ReadError("broken")
        await asyncio.sleep(self._cluster.latency)
        if self.mood(index) is Mood.REFUSES:
            raise httpx.ReadError("broken")
        before, self._before[index] = self._before.get(index, b"{}"), answer
        if mood is Mood.IDS:
            return httpx.Response(200, content=before)
        if mood is Mood.GENESIS and _ASKS_GENESIS in body:
            return httpx.Response(200, content=self._without_hash(answer))
        return httpx.Response(200, content=self._spoilt(mood, answer))

    def _without_hash(self, answer: bytes) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(answer), "result": self._random.choice(_NO_HASHES)})

    def _spoilt(self, mood: Mood, data: bytes) -> bytes:
        if mood is Mood.HTML:
            return _HTML
        if mood is Mood.CUT:
            return data[: len(data) // 2]
        return self._retyped(data) if mood is Mood.TYPES else data

    def _retyped(self, data: bytes) -> bytes:
        """The JSON with one of its values, not an absent one, exchanged for one of another type."""
        tree = msgspec.json.decode(data)
        places = list(_places({key: tree[key] for key in ("result", "params") if key in tree}, tree))
        if places:
            holder, key = self._random.choice(places)
            others = [other for other in _OTHER_TYPES if type(other) is not type(holder[key])]
            holder[key] = self._random.choice(others)
        return msgspec.json.encode(tree)

    # --- websockets ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def websocket(self, url: str) -> AsyncIterator[_Socket]:
        socket = _Socket(self, _index(httpx.URL(url).host), len(self._sockets))
        await asyncio.sleep(self._cluster.latency)
        if self.mood(socket.index) is Mood.REFUSES:
            raise ConnectionRefusedError("refused")
        if self.mood(socket.index) is Mood.SILENT:
            await asyncio.sleep(_PINGED)
            raise TimeoutError
        self._sockets.add(socket)
        try:
            yield socket
        finally:
            self._sockets.discard(socket)
            self._cluster.node.subscriptions.drop(socket)

    def calls(self, socket: _Socket) -> Calls:
        return Calls(self._cluster.node.subscriptions, socket)

    async def delay(self, since: float) -> None:
        """Wait until what was sent at `since` arrives."""
        left = since + self._cluster.latency - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def passed(self, index: int, text: str) -> str | None:
        """What arrives of a message of the websocket; None if nothing does."""
        mood = self.mood(index)
        if mood in (Mood.MUTE, Mood.SILENT, Mood.REFUSES):
            return None
        return self._spoilt(mood, text.encode()).decode()


class _Socket:
    """A websocket (`chain.wire.Connection`), and the outbox of its subscriptions."""

    def __init__(self, road: Road, index: int, number: int) -> None:
        self.index, self.number = index, number
        self._road = road
        self._calls = road.calls(self)
        self._arriving: asyncio.Queue[tuple[float, str | None]] = asyncio.Queue()

    def put(self, text: str) -> None:
        self._arriving.put_nowait((asyncio.get_running_loop().time(), text))

    def end(self) -> None:
        self._arriving.put_nowait((0.0, None))

    async def send(self, message: str, /) -> None:
        sent = asyncio.get_running_loop().time()
        await self._road.delay(sent)
        if self._road.mood(self.index) not in (Mood.SILENT, Mood.REFUSES):
            self._calls.answer(message)

    async def recv(self) -> str:
        while True:
            try:
                async with asyncio.timeout(_PINGED):
                    sent, text = await self._arriving.get()
            except TimeoutError:
                if self._road.mood(self.index) in (Mood.SILENT, Mood.REFUSES):
                    raise ConnectionClosedError(None, None) from None
                continue
            if text is None:
                raise ConnectionClosedError(None, None)
            await self._road.delay(sent)
            if (arrived := self._road.passed(self.index, text)) is not None:
                return arrived

    async def close(self) -> None:
        self.end()


def _index(host: str) -> int:
    return int(host.removeprefix("node").removesuffix(".sim"))


def _places(tree: Any, holder: Any) -> list[tuple[Any, Any]]:
    """(container, key) of every value below `tree` that is there; the first ones are in `holder`."""
    found: list[tuple[Any, Any]] = []
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        if value is not None:
            found += [(holder, key), *_places(value, value)]
    return found
