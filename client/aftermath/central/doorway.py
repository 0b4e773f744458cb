"""Connections on which nothing was asked yet: few at a time, with or without TLS, for some seconds.

A connection counts from the start, not from when TLS is set up. If there are too many, the oldest
connection of the address with most makes room: otherwise one client could drive out members with
slow lines. An evicted connection is closed at once, without a goodbye of TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from aftermath.base.crowding import makes_room, place

MOST_SILENT = 64
"""Connections on which nothing was asked yet."""
SILENT_SECONDS = 10.0


class Doorway(web.Server):
    """A web server that few can hold open without asking anything."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(self._ask, access_log=None, keepalive_timeout=SILENT_SECONDS)
        self._answer = handler
        self._silent: dict[asyncio.BaseProtocol, asyncio.Transport] = {}
        self._places: dict[asyncio.BaseProtocol, str] = {}

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Let connections in. Raises OSError."""
        loop = asyncio.get_running_loop()
        factory: Callable[[], asyncio.Protocol] = self if tls is None else lambda: _Handshake(self, tls)
        return await loop.create_server(factory, host, port, backlog=128)

    async def _ask(self, request: web.BaseRequest) -> web.StreamResponse:
        self.went(request.protocol)
        return await self._answer(request)

    def came(self, one: asyncio.BaseProtocol, transport: asyncio.Transport) -> None:
        """A connection is there; there is always room for one more."""
        if len(self._silent) >= MOST_SILENT:
            oldest = makes_room(self._places)
            held = self._silent[oldest]
            self.went(oldest)
            held.abort()
        self._silent[one], self._places[one] = transport, place(transport)

    def went(self, one: asyncio.BaseProtocol) -> None:
        """It has asked something, or has gone."""
        self._silent.pop(one, None)
        self._places.pop(one, None)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.came(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        self.went(handler)
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        for transport in list(self._silent.values()):
            transport.abort()
        await super().shutdown(timeout)


class _Handshake(asyncio.Protocol):
    """A connection whose TLS is not there yet; what comes together with its end is kept for who answers."""

    def __init__(self, doorway: Doorway, context: ssl.SSLContext) -> None:
        self._doorway, self._context = doorway, context
        self._held: list[bytes] = []
        self._lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # what comes is for the handshake
        self._doorway.came(self, transport)
        self._task = asyncio.create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        self._held.append(data)

    def eof_received(self) -> None:
        self._lost = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            private = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=SILENT_SECONDS
            )
        except OSError:  # of TLS too, and of time
            transport.abort()
            return
        finally:
            self._doorway.went(self)
        if private is None or self._lost:
            transport.abort()
            return
        handler = self._doorway()
        private.set_protocol(handler)
        handler.connection_made(private)
        for data in self._held:
            handler.data_received(data)
