"""Limit the number and duration of connections that have not authenticated yet.

Such a connection costs the client nothing, but it takes one of the server's file descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import web

from aftermath.base.rate_limit import connection_to_close, peer_network

MAX_UNAUTHENTICATED = 64
HANDSHAKE_SECONDS = 10.0
"""Timeout of each step: the TLS handshake, the first request, the answer to the challenge."""


class ConnectionLimiter(web.Server):
    """A web server that limits each connection until `release` is called for it."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        # aiohttp ends a connection on which no request arrives within `keepalive_timeout`.
        super().__init__(handler, access_log=None, keepalive_timeout=HANDSHAKE_SECONDS)
        self._unauthenticated: dict[web.RequestHandler | _TlsHandshake, str] = {}
        """Network addresses by connection, oldest connection first."""

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> asyncio.Server:
        """Accept connections. Raises OSError."""
        accept = self if tls is None else lambda: _TlsHandshake(self, tls)
        return await asyncio.get_running_loop().create_server(accept, host, port, backlog=128)

    def release(self, connection: web.RequestHandler | _TlsHandshake) -> None:
        """Lift the limits of a connection, because it authenticated or ended."""
        self._unauthenticated.pop(connection, None)

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.limit(handler, transport)

    def limit(
        self, connection: web.RequestHandler | _TlsHandshake, transport: asyncio.BaseTransport
    ) -> None:
        """Start the limits of a new connection. Drop an older one if there are too many."""
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            # Drop the oldest connection of the address that has the most, so that one address
            # cannot occupy every slot.
            self._drop(connection_to_close(self._unauthenticated))
        self._unauthenticated[connection] = peer_network(transport)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        self.release(handler)
        super().connection_lost(handler, exc)

    async def shutdown(self, timeout: float | None = None) -> None:
        for connection in list(self._unauthenticated):
            self._drop(connection)
        await super().shutdown(timeout)

    def _drop(self, connection: web.RequestHandler | _TlsHandshake) -> None:
        """Close a connection without waiting for the other side."""
        self.release(connection)
        if connection.transport is not None:
            connection.transport.abort()


class _TlsHandshake(asyncio.Protocol):
    """A connection during its TLS handshake. The limits apply from its first byte.

    This class exists because asyncio's TLS server reports a connection only after the handshake.
    """

    def __init__(self, limiter: ConnectionLimiter, tls: ssl.SSLContext) -> None:
        self.transport: asyncio.Transport | None = None
        self._limiter = limiter
        self._tls = tls
        self._early = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._limiter.limit(self, transport)
        self._task = asyncio.get_running_loop().create_task(self._secure(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data  # decrypted bytes that arrive before `_secure` continues

    async def _secure(self, transport: asyncio.Transport) -> None:
        """Do the TLS handshake, then pass the connection to the web server."""
        secured: asyncio.Transport | None = None
        with contextlib.suppress(OSError):  # it failed, or took HANDSHAKE_SECONDS
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                self,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
            )
        self._limiter.release(self)
        if secured is None:
            transport.abort()
            return
        handler = self._limiter()
        secured.set_protocol(handler)
        handler.connection_made(secured)
        if self._early:
            handler.data_received(self._early)
