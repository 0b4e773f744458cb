"""What carries bytes to an RPC node and back: the network this machine is on, or a simulated one.

Decided: the seam is below everything that reads a reply, so that status codes, lengths, JSON and ids are judged by the
same code whoever answers. Of a websocket also frames that are no messages cost time (pings, empty pieces; two bytes
each, and tens of thousands arrive at once), so they have a pace of their own, and are taken in a few at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.protocol import Event

from aftermath.base.bucket import Bucket
from aftermath.base.proxies import ProxyTransport, proxy_url

MAX_MESSAGE = 1 << 13
"""Bytes of a websocket's: a push of the Run account takes less than 3,000, and a MiB of JSON can take 0.2 s to read."""
MOST_FRAMES_AT_ONCE, MOST_FRAMES_PER_SECOND = 2_000, 400
_TAKEN_IN = 1 << 10
"""Bytes between two looks at the pace."""
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


class Paced(ClientConnection):
    """A websocket that is gone once more frames come than any node has a reason to send."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._pace = Bucket(self.loop.time, MOST_FRAMES_PER_SECOND, MOST_FRAMES_AT_ONCE)

    def data_received(self, data: bytes) -> None:
        """Bytes of it have come."""
        for start in range(0, len(data), _TAKEN_IN):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _TAKEN_IN])

    def process_event(self, event: Event) -> None:
        """A frame of it has."""
        if self._pace.spare():
            super().process_event(event)
        else:
            self.transport.abort()


class Internet:
    """Real sockets. A websocket's messages are bounded and come as they are (not compressed), and it is pinged."""

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=HTTP_SECONDS, transport=ProxyTransport())

    def websocket(self, url: str) -> AbstractAsyncContextManager[Connection]:
        return connect(
            url,
            create_connection=Paced,
            proxy=proxy_url(url),
            compression=None,
            max_size=MAX_MESSAGE,
            open_timeout=OPEN_SECONDS,
            ping_interval=PING_SECONDS,
            ping_timeout=PING_SECONDS,
            close_timeout=CLOSE_SECONDS,
        )
