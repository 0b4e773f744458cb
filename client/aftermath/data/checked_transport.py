"""An HTTP transport that connects only to addresses that a run may reach."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpcore
import httpx

from aftermath.base.allowed_locations import Permits, any_address, permitted
from aftermath.base.proxies import ProxyTransport, proxy_for


def checked_transport(permits: Permits, limits: httpx.Limits) -> httpx.AsyncBaseTransport:
    """Return a transport that connects to allowed addresses only.

    Its requests raise Unsuitable for others.
    """
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


# A host name could resolve to another address at the next lookup, so the connection uses the
# address that was checked.
class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """A network backend that connects to allowed addresses only."""

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
        """Connect to an allowed address of a host. Raise Unsuitable or httpcore.ConnectError."""
        error: Exception = httpcore.ConnectError(f"{host} has no address")
        addresses = await _checked(host, port, self._permits)
        for address in addresses:
            # leaves time for the next address
            share = timeout / len(addresses) if timeout is not None else None
            try:
                return await self._connects.connect_tcp(
                    address, port, share, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as caught:
                error = caught
        raise error


class _CheckedTransport(httpx.AsyncBaseTransport):
    """A transport that checks a host before it asks a proxy, if this machine can resolve
    the host.
    """

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
    """Return the allowed addresses of a host, or none if it cannot be resolved. Raise
    Unsuitable.
    """
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return permitted(host, addresses, permits)
