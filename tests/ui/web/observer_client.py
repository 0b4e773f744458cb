"""An observer in this process on the test's own network, and a client for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.ui.web.observatory import Observatory
from aftermath.ui.web.web_server import ObserverServer

PATIENCE = 4.0
"""Seconds for a busy machine, less than the observer makes a request wait for the chain. A loop
that jumps does not wait for an absent network.
"""


class Viewer:
    """A client of the observer at this address."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self.url = url
        self.session = session

    async def text(self, path: str) -> str:
        async with self.session.get(self.url + path) as reply:
            assert reply.status == 200, await reply.text()
            return await reply.text()

    async def answer(self, path: str) -> tuple[int, Any]:
        """Return the status and the JSON of an answer."""
        async with self.session.get(self.url + path) as reply:
            return reply.status, await reply.json()

    async def json(self, path: str) -> Any:
        return json.loads(await self.text(path))

    async def status(self, path: str) -> int:
        async with self.session.get(self.url + path) as reply:
            return reply.status

    def live(self, path: str, **headers: str) -> Any:
        """Open a websocket for the block."""
        return self.session.ws_connect(self.url + path, headers=headers)


async def until(socket: ClientWebSocketResponse, condition: Callable[[Any], bool]) -> Any:
    """Return the first message that meets the condition."""
    while True:
        message = await socket.receive_json(timeout=30)
        if condition(message):
            return message


def state_is(state: str) -> Callable[[Any], bool]:
    """Return the condition that a run is in this state."""
    return lambda message: bool(
        ((message.get("now") or {}).get("moment") or {}).get("state") == state
    )


@asynccontextmanager
async def observing(
    rpc: str,
    ws: str | None = None,
    *,
    run_id: str | None = None,
    events: Sequence[Path] = (),
    most_viewers: int = 8,
    names: Sequence[str] = (),
) -> AsyncIterator[Viewer]:
    """Run an observer of this network until the block ends."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(RpcPool([endpoint(rpc, ws)], patience=PATIENCE))
        observatory = Observatory(CoordinatorClient(pool), named=run_id, events=events)
        await stack.enter_async_context(observatory.open())
        server = ObserverServer(observatory, most_viewers=most_viewers, names=names)
        port = await stack.enter_async_context(server.listening("127.0.0.1", 0))
        session = await stack.enter_async_context(ClientSession())
        yield Viewer(f"http://127.0.0.1:{port}", session)
