"""What carries bytes to an RPC node and back: the network this machine is on, or a simulated one.

Decided: the seam is below everything that reads a reply, so that status codes, lengths, JSON and ids are judged by the
same code whoever answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import httpx
from websockets.asyncio.client import connect

MAX_MESSAGE = 1 << 20
PING_SECONDS = 5.0
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 0.2  # a node that does not answer must not hold up the end of a process
HTTP_SECONDS = 30.0


class Connection(Protocol):
    """A websocket. It raises websockets' own errors; iteration ends when it was closed in order."""

    async def send(self, message: str, /) -> None: ...

    async def recv(self) -> str | bytes: ...

    async def close(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[str | bytes]: ...


class Wire(Protocol):
    """Opens conversations with a node."""

    def http(self) -> httpx.AsyncClient: ...

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]: ...


class Internet:
    """Real sockets. A websocket's messages are bounded, and it is pinged."""

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=HTTP_SECONDS)

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        return connect(
            url,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=CLOSE_SECONDS,
        )
