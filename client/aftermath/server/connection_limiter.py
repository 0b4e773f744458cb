"""Limit the number and duration of connections that have not authenticated yet.

Each of them takes one of the server's file descriptors, and costs the client nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from aftermath.base.rate_limit import makes_room, place

MAX_UNAUTHENTICATED = 64
HANDSHAKE_SECONDS = 10.0
"""Timeout of each step: the TLS handshake, the first request, the answer to the challenge."""


class ConnectionLimiter(web.Server):
    """A web server that limits each connection until `release` is called for it."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        # aiohttp ends a connection on which no request arrives within `keepalive_timeout`.
        super().__init__(handler, access_log=None, keepalive_timeout=HANDSHAKE_SECONDS)
        self._unauthenticated: dict[web.RequestHandler, str] = {}
        """Network addresses by connection, oldest connection first."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Accept connections. Raises OSError."""
        return await asyncio.get_running_loop().create_server(
            self,
            host,
            port,
            ssl=tls,
            backlog=128,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
        )

    def release(self, connection: web.RequestHandler) -> None:
        """Lift the limits of a connection, because it authenticated or ended."""
        self._unauthenticated.pop(connection, None)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            # Drop the oldest connection of the address that has the most, so that one address
            # cannot take all places.
            self._drop(makes_room(self._unauthenticated))
        self._unauthenticated[handler] = place(transport)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self.release(handler)
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        for connection in list(self._unauthenticated):
            self._drop(connection)
        await super().shutdown(timeout)

    def _drop(self, connection: web.RequestHandler) -> None:
        """Close a connection without waiting for the other side."""
        self.release(connection)
        if connection.transport is not None:
            connection.transport.abort()
