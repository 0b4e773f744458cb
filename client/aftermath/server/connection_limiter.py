"""Limits the number and duration of connections that have not proven an identity.

Each takes one of the process's file descriptors, and costs its opener nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from aftermath.base.rate_limit import makes_room, place

MOST_STRANGERS = 64
STRANGER_SECONDS = 10.0
"""Timeout of each step: the TLS handshake, the first request, the proof of an identity."""


class ConnectionLimiter(web.Server):
    """A web server that limits connections until `settle` is called for them."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        # aiohttp ends a connection on which no request arrives within `keepalive_timeout`.
        super().__init__(handler, access_log=None, keepalive_timeout=STRANGER_SECONDS)
        self._strangers: dict[web.RequestHandler, str] = {}
        """Addresses by connection, oldest connection first."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Accept connections. Raises OSError."""
        return await asyncio.get_running_loop().create_server(
            self,
            host,
            port,
            ssl=tls,
            backlog=128,
            ssl_handshake_timeout=None if tls is None else STRANGER_SECONDS,
        )

    def settle(self, connection: web.RequestHandler) -> None:
        """Lift the limits of a connection, because it proved an identity or ended."""
        self._strangers.pop(connection, None)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if len(self._strangers) >= MOST_STRANGERS:
            # Drop the oldest of the address with the most, so that it cannot keep others out.
            self._drop(makes_room(self._strangers))
        self._strangers[handler] = place(transport)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self.settle(handler)
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        for stranger in list(self._strangers):
            self._drop(stranger)
        await super().shutdown(timeout)

    def _drop(self, stranger: web.RequestHandler) -> None:
        """End a connection without waiting for the other side."""
        self.settle(stranger)
        if stranger.transport is not None:
            stranger.transport.abort()
