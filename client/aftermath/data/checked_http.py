"""HTTP connections to checked addresses: every connection, that of a redirect too, goes to an address that was checked.

A name could have another address at the next look, so the address that was checked is the one connected to.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpcore
import httpx

from aftermath.base.proxies import ProxyTransport, proxy_for
from aftermath.base.run_access import Permits, any_address, permitted


def transport(permits: Permits, limits: httpx.Limits) -> httpx.AsyncBaseTransport:
    """Return what sends HTTP requests to allowed addresses only. Raises Unsuitable, in a request, for others."""
    context = httpx.create_ssl_context()
    direct = httpx.AsyncHTTPTransport(verify=context, limits=limits)
    if permits is any_address:
        return ProxyTransport(direct, limits)
    direct._pool = httpcore.AsyncConnectionPool(  # httpx has no parameter for how it connects
        ssl_context=context,
        max_connections=limits.max_connections,
        max_keepalive_connections=limits.max_keepalive_connections,
        keepalive_expiry=limits.keepalive_expiry,
        network_backend=_CheckedBackend(permits),
    )
    return _CheckedTransport(ProxyTransport(direct, limits), permits)


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Connects to allowed addresses of a host."""

    def __init__(self, permits: Permits) -> None:
        self._permits = permits
        self._connects = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one of a host's allowed addresses. Raises Unsuitable, httpcore.ConnectError."""
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        addresses = await _checked(host, port, self._permits)
        for address in addresses:
            share = timeout / len(addresses) if timeout is not None else None  # one may not answer, and the next may
            try:
                return await self._connects.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as caught:
                error = caught
        raise error


class _CheckedTransport(httpx.AsyncBaseTransport):
    """Checks a host before a proxy is asked for it, as far as this machine knows the host's address."""

    def __init__(self, inner: ProxyTransport, permits: Permits) -> None:
        self._inner = inner
        self._permits = permits

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        if proxy_for(str(request.url)) is not None:
            await _checked(request.url.host, request.url.port, self._permits)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


async def _checked(host: str, port: int | None, permits: Permits) -> list[str]:
    """Return the allowed addresses of a host, none where its name is not known here. Raises Unsuitable."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return permitted(host, found, permits)
