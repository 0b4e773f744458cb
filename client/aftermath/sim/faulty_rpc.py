"""A member's simulated connection to the chain's nodes (`chain.node_client.Wire`), with faults.

Every message takes `latency` seconds each way. A node that refuses, limits or fails has not
executed the request. A node whose answer is damaged on the way has executed it. The connection's
own seed determines the damage.
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

_NEVER = 3600.0  # seconds of silence of a silent node; longer than any timeout
_PINGED = 10.0  # seconds after which a websocket whose ping got no answer ends
_SENDS = b'"sendTransaction"'
_ASKS_GENESIS = b'"getGenesisHash"'
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"
_OTHER_TYPES: tuple[Any, ...] = (7, "x", [], {}, True, 1.5)
_NO_HASHES: tuple[Any, ...] = ("", "null", "not a hash", 7, [], {"hash": 1}, False, "1" * 43 + "0")


class NodeFault(StrEnum):
    """How a node treats one member."""

    GOOD = "good"
    REFUSES = "refuses"
    """No connection."""
    SILENT = "silent"
    """Accepts requests and never answers."""
    LIMITS = "limits"
    """429."""
    FAILS = "fails"
    """500."""
    HTML = "html"
    CUT = "cut"
    """Half of the JSON."""
    TYPES = "types"
    """One value in the JSON has another type."""
    IDS = "ids"
    """The id and the result are those of another call."""
    GENESIS = "genesis"
    """The genesis hash is not a valid hash."""
    BEHIND = "behind"
    """Answers with the state of ten seconds ago."""
    MUTE = "mute"
    """The websocket stays open and silent."""


class RpcCluster(Protocol):
    """The cluster that the connection leads to."""

    @property
    def node(self) -> SimNode: ...

    @property
    def latency(self) -> float: ...

    @property
    def down(self) -> bool: ...


class FaultyRpc(httpx.AsyncBaseTransport):
    """One member's `Wire`, and its HTTP transport."""

    def __init__(self, cluster: RpcCluster, seed: int, nodes: int = 1) -> None:
        self.node_faults = [NodeFault.GOOD] * nodes
        self.replies_lost = 0
        """Number of next transactions that land although the connection breaks before the reply."""
        self.send_seconds = 0.0
        """Seconds that a transaction travels. It arrives even if its sender stops meanwhile."""
        self._travelling: set[asyncio.Task[bytes]] = set()
        self._cluster = cluster
        self._random = random.Random(seed)
        self._before: dict[int, bytes] = {}
        self._sockets: set[_Socket] = set()

    @property
    def endpoints(self) -> list[Endpoint]:
        return [endpoint(f"http://node{index}.sim:8899") for index in range(len(self.node_faults))]

    @property
    def is_sending(self) -> bool:
        """Whether a transaction is travelling (see `send_seconds`)."""
        return bool(self._travelling)

    @property
    def down(self) -> bool:
        """Whether no node can be reached."""
        return all(node_fault is NodeFault.REFUSES for node_fault in self.node_faults)

    @down.setter
    def down(self, down: bool) -> None:
        self.set_node_faults(
            [NodeFault.REFUSES if down else NodeFault.GOOD] * len(self.node_faults)
        )

    def set_node_faults(self, node_faults: Sequence[NodeFault]) -> None:
        """Set how the nodes treat this member from now on."""
        self.node_faults = list(node_faults)
        self.broken()

    def broken(self) -> None:
        """Close the websockets whose nodes are unreachable."""
        for socket in sorted(self._sockets, key=lambda socket: socket.number):
            if self.node_fault(socket.index) is NodeFault.REFUSES:
                socket.end()

    def node_fault(self, index: int) -> NodeFault:
        return NodeFault.REFUSES if self._cluster.down else self.node_faults[index]

    # --- HTTP ---

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=self, timeout=None, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        index = _index(request.url.host)
        body = await request.aread()
        await asyncio.sleep(self._cluster.latency)
        node_fault = self.node_fault(index)
        if node_fault is NodeFault.REFUSES:
            raise httpx.ConnectError("refused")
        if node_fault is NodeFault.SILENT:
            await asyncio.sleep(_NEVER)
            raise httpx.ReadTimeout("silent")
        if node_fault in (NodeFault.LIMITS, NodeFault.FAILS):
            return httpx.Response(429 if node_fault is NodeFault.LIMITS else 500, content=b"no")
        if self.send_seconds and _SENDS in body:
            answer = await self._arrival(body)
        else:
            answer = await self._cluster.node.answer(body, lagging=node_fault is NodeFault.BEHIND)
        if self.replies_lost and _SENDS in body:
            self.replies_lost -= 1
            raise httpx.ReadError("broken")
        await asyncio.sleep(self._cluster.latency)
        if self.node_fault(index) is NodeFault.REFUSES:
            raise httpx.ReadError("broken")
        before = self._before.get(index, b"{}")
        self._before[index] = answer
        if node_fault is NodeFault.IDS:
            return httpx.Response(200, content=before)
        if node_fault is NodeFault.GENESIS and _ASKS_GENESIS in body:
            return httpx.Response(200, content=self._without_hash(answer))
        return httpx.Response(200, content=self._spoilt(node_fault, answer))

    async def _arrival(self, body: bytes) -> bytes:
        """Return a node's answer to a transaction that arrives after `send_seconds`."""

        async def travel() -> bytes:
            await asyncio.sleep(self.send_seconds)
            return await self._cluster.node.answer(body)

        task = asyncio.ensure_future(travel())
        self._travelling.add(task)
        task.add_done_callback(self._travelling.discard)
        return await asyncio.shield(task)

    def _without_hash(self, answer: bytes) -> bytes:
        return msgspec.json.encode(
            {**msgspec.json.decode(answer), "result": self._random.choice(_NO_HASHES)}
        )

    def _spoilt(self, node_fault: NodeFault, data: bytes) -> bytes:
        if node_fault is NodeFault.HTML:
            return _HTML
        if node_fault is NodeFault.CUT:
            return data[: len(data) // 2]
        return self._retyped(data) if node_fault is NodeFault.TYPES else data

    def _retyped(self, data: bytes) -> bytes:
        """Return the JSON with one value that is not null replaced by a value of another type."""
        tree = msgspec.json.decode(data)
        places = list(
            _places({key: tree[key] for key in ("result", "params") if key in tree}, tree)
        )
        if places:
            holder, key = self._random.choice(places)
            others = [other for other in _OTHER_TYPES if type(other) is not type(holder[key])]
            holder[key] = self._random.choice(others)
        return msgspec.json.encode(tree)

    # --- websockets ---

    @asynccontextmanager
    async def websocket(self, url: str) -> AsyncIterator[_Socket]:
        socket = _Socket(self, _index(httpx.URL(url).host), len(self._sockets))
        await asyncio.sleep(self._cluster.latency)
        if self.node_fault(socket.index) is NodeFault.REFUSES:
            raise ConnectionRefusedError("refused")
        if self.node_fault(socket.index) is NodeFault.SILENT:
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
        """Wait until a message that was sent at `since` arrives."""
        left = since + self._cluster.latency - asyncio.get_running_loop().time()
        if left > 0:
            await asyncio.sleep(left)

    def passed(self, index: int, text: str) -> str | None:
        """Return the part of a websocket message that arrives, or None."""
        node_fault = self.node_fault(index)
        if node_fault in (NodeFault.MUTE, NodeFault.SILENT, NodeFault.REFUSES):
            return None
        return self._spoilt(node_fault, text.encode()).decode()


class _Socket:
    """A websocket (`chain.node_client.Connection`) and its subscriptions' outbox."""

    def __init__(self, rpc: FaultyRpc, index: int, number: int) -> None:
        self.index = index
        self.number = number
        self._rpc = rpc
        self._calls = rpc.calls(self)
        self._arriving: asyncio.Queue[tuple[float, str | None]] = asyncio.Queue()

    def put(self, text: str) -> None:
        self._arriving.put_nowait((asyncio.get_running_loop().time(), text))

    def end(self) -> None:
        self._arriving.put_nowait((0.0, None))

    async def send(self, message: str, /) -> None:
        sent = asyncio.get_running_loop().time()
        await self._rpc.delay(sent)
        if self._rpc.node_fault(self.index) not in (NodeFault.SILENT, NodeFault.REFUSES):
            self._calls.answer(message)

    async def recv(self) -> str:
        while True:
            try:
                async with asyncio.timeout(_PINGED):
                    sent, text = await self._arriving.get()
            except TimeoutError:
                if self._rpc.node_fault(self.index) in (NodeFault.SILENT, NodeFault.REFUSES):
                    raise ConnectionClosedError(None, None) from None
                continue
            if text is None:
                raise ConnectionClosedError(None, None)
            await self._rpc.delay(sent)
            if (arrived := self._rpc.passed(self.index, text)) is not None:
                return arrived

    async def close(self) -> None:
        self.end()


def _index(host: str) -> int:
    return int(host.removeprefix("node").removesuffix(".sim"))


def _places(tree: Any, holder: Any) -> list[tuple[Any, Any]]:
    """Yield (container, key) of every value below `tree` that is not null."""
    found: list[tuple[Any, Any]] = []
    items = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for key, value in items:
        if value is not None:
            found += [(holder, key), *_places(value, value)]
    return found
