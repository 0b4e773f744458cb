"""HTTP nodes whose answers are scripted, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from solders.hash import Hash

from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.node_client import NodeClient
from chain.faults import answer, answer_error

Answer = Callable[[dict[str, Any]], Awaitable[web.Response]]


def cluster(name: str) -> str:
    """Return a genesis hash that depends on the cluster's name."""
    return str(Hash.hash(name.encode()))


class Node:
    """An HTTP node whose next answers are scripted; without a script it answers slot 7 of cluster
    `genesis`.
    """

    def __init__(self, genesis: Any = cluster("the one")) -> None:
        self.genesis = genesis
        self.script: list[Answer] = []
        self.always: Answer | None = None
        self.methods: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.methods.append(body["method"])
        if self.always is not None:
            return await self.always(body)
        if body["method"] == "getGenesisHash":
            return answer(body, self.genesis)
        return await self.script.pop(0)(body) if self.script else answer(body, 7)

    def count(self, method: str) -> int:
        return self.methods.count(method)


async def get_slot(node: NodeClient) -> int:
    """Ask a node for its slot. A scripted node answers 7."""
    return (await node.get_slot()).value


def result(value: Any) -> Answer:
    async def reply(body: dict[str, Any]) -> web.Response:
        return answer(body, value)

    return reply


def by_method(**results: Any) -> Answer:
    """Answer with the result for the request's method."""

    async def reply(body: dict[str, Any]) -> web.Response:
        return answer(body, results[body["method"]])

    return reply


def error(code: int, data: Any = None) -> Answer:
    async def reply(body: dict[str, Any]) -> web.Response:
        return answer_error(body, code, data=data)

    return reply


def status(code: int, **headers: str) -> Answer:
    """Answer with a status code. Header names have `_` in place of `-`."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}

    async def reply(_: dict[str, Any]) -> web.Response:
        return web.Response(status=code, text="no", headers=fields)

    return reply


def text(body: str) -> Answer:
    async def reply(_: dict[str, Any]) -> web.Response:
        return web.Response(text=body)

    return reply


async def hang(_: dict[str, Any]) -> web.Response:
    await asyncio.sleep(3600)
    raise AssertionError


@asynccontextmanager
async def serving(*nodes: Node) -> AsyncIterator[list[Endpoint]]:
    runners = []
    for node in nodes:
        app = web.Application()
        app.router.add_post("/", node.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        node.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    try:
        yield [endpoint(node.url) for node in nodes]
    finally:
        for runner in runners:
            await runner.cleanup()
