"""Network faults between the client and a node: a TCP proxy that can be closed, cut or turned into
a black hole, and a mute websocket.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from websockets.asyncio.server import ServerConnection, serve


class Proxy:
    """Forward a local port to `target`. `open` forwards, `close` cuts connections and refuses new
    ones, and `black_hole` drops all bytes.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def open(self) -> None:
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()

    def black_hole(self) -> None:
        """Keep connections open, and pass nothing in either direction until `open`."""
        self._flowing.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            upstream, to_upstream = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(to_upstream)
        await asyncio.gather(self._pump(reader, to_upstream), self._pump(upstream, writer))
        self._writers -= {writer, to_upstream}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def proxy(target: int) -> AsyncIterator[Proxy]:
    proxy_server = Proxy(target)
    await proxy_server.open()
    try:
        yield proxy_server
    finally:
        await proxy_server.close()


class FaultyNode:
    """A websocket that confirms subscriptions, answers pings, and never notifies.

    It sends `after` instead, once or every `every` seconds. `confirmation` replaces parts of its
    confirmation.
    """

    def __init__(self, after: Sequence[str], every: float, confirmation: dict[str, Any]) -> None:
        self.subscriptions = 0
        self.url = ""
        self._after = after
        self._every = every
        self._confirmation = confirmation

    async def handle(self, connection: ServerConnection) -> None:
        async for message in connection:
            self.subscriptions += 1
            confirmed = {
                "jsonrpc": "2.0",
                "id": json.loads(message)["id"],
                "result": 3,
                **self._confirmation,
            }
            await connection.send(json.dumps(confirmed))
            for text in itertools.cycle(self._after) if self._every else self._after:
                await connection.send(text)
                await asyncio.sleep(self._every)


@asynccontextmanager
async def faulty_websocket(
    *after: str, every: float = 0.0, **confirmation: Any
) -> AsyncIterator[FaultyNode]:
    node = FaultyNode(after, every, confirmation)
    async with serve(node.handle, "127.0.0.1", 0) as server:
        node.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield node


Hook = Callable[[dict[str, Any]], Awaitable[web.StreamResponse | None]]


@asynccontextmanager
async def meddling(target: str, before: Hook, after: Hook | None = None) -> AsyncIterator[str]:
    """Yield an RPC node in front of `target`. `before` may answer in its place, `after` may replace
    its answer.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if (answer := await before(body)) is not None:
            return answer
        async with session.post(target, json=body) as response:
            text = await response.text()
        if after is not None and (answer := await after(body)) is not None:
            return answer
        return web.Response(text=text, content_type="application/json")

    app = web.Application(client_max_size=1 << 20)
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    async with aiohttp.ClientSession() as session:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def answer_error(
    body: dict[str, Any], code: int, message: str = "no", data: Any = None
) -> web.Response:
    error = {"code": code, "message": message, "data": data}
    return web.json_response({"jsonrpc": "2.0", "id": body["id"], "error": error})


def answer(body: dict[str, Any], result: Any) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": body["id"], "result": result})


SYSTEM = "11111111111111111111111111111111"


def account_json(raw: bytes, encoding: str = "base64", **changes: Any) -> dict[str, Any]:
    text = base64.b64encode(raw).decode()
    return {
        "lamports": 5,
        "owner": SYSTEM,
        "executable": False,
        "rentEpoch": 0,
        "data": [text, encoding],
        **changes,
    }
