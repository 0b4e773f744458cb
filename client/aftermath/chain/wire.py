"""Carry bytes to RPC nodes: over this machine's network, or over a simulated one.

Callers check status codes, lengths and JSON, so these checks also run in a simulation.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import httpx
from websockets.asyncio.client import connect

from aftermath.base.proxies import ProxyTransport, proxy_url

MAX_MESSAGE = 1 << 13
"""Maximum size of a websocket message in bytes. A push of the Run account takes about 2,000."""
PING_SECONDS = 5.0
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 0.2  # a node that does not answer must not hold up the end of a process
HTTP_SECONDS = 30.0


class Connection(Protocol):
    """A websocket. It raises websockets' own errors."""

    async def send(self, message: str, /) -> None: ...

    async def recv(self) -> str | bytes: ...

    async def close(self) -> None: ...


class Wire(Protocol):
    """Opens HTTP sessions and websockets to a node."""

    def http(self) -> httpx.AsyncClient: ...

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]: ...


class Internet:
    """Opens real connections. Websocket messages are size-limited and not compressed."""

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=HTTP_SECONDS, transport=ProxyTransport())

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        return connect(
            url,
            proxy=proxy_url(url),
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=CLOSE_SECONDS,
        )
