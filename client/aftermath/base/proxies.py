"""Choose a connection's proxy from HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

The HTTP and websocket libraries read these variables differently and fail on values that desktops
set: networks in NO_PROXY, or `socks://`. Connections to this machine never use a proxy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from aftermath.base.errors import UsageError

_HTTP_SCHEME = {"ws": "http", "wss": "https"}
_SOCKS = ("socks5", "socks5h")
_SOCKS_PACKAGES = {"http": "socksio", "ws": "python_socks"}


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the environment variable that names it."""

    url: str
    variable: str


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy for an http, https, ws or wss address, or None for a direct connection.

    Raises UsageError for a proxy that cannot be used.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_this_machine(host):
        return None
    proxies = getproxies()  # it reads every environment variable, so skip it for local requests
    if _is_exempt(host, parts.port, proxies.get("no", "")):
        return None
    scheme = _HTTP_SCHEME.get(parts.scheme, parts.scheme)
    kind = scheme if proxies.get(scheme) else "all"
    if not proxies.get(kind):
        return None
    proxy = Proxy(_completed(proxies[kind]), _variable(kind))
    _check(proxy, host, "ws" if parts.scheme in _HTTP_SCHEME else "http")
    return proxy


def proxy_url(url: str) -> str | None:
    """Return the URL of the proxy to use for `url`, or None for a direct connection.

    Raises UsageError.
    """
    proxy = proxy_for(url)
    return proxy.url if proxy is not None else None


def is_this_machine(host: str) -> bool:
    """Return whether a host is this machine, by its name or address alone."""
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """Return whether NO_PROXY exempts a host.

    Entries are names, parent domains, addresses or networks, with or without a port.
    """
    for entry in no_proxy.replace(",", " ").lower().split():
        if entry == "*":
            return True
        name, colon, number = entry.rpartition(":")
        if colon and number.isdecimal() and (":" not in name or name.startswith("[")):
            if int(number) != port:
                continue
            entry = name
        name = entry.strip("[]").removeprefix("*").removeprefix(".")
        if host.lower() == name or host.lower().endswith(f".{name}") or _is_in_network(host, name):
            return True
    return False


def _is_in_network(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False


def _completed(proxy: str) -> str:
    """Return a proxy's address with a scheme that libraries know.

    Desktops write `socks://` for SOCKS 5. With `socks5h` every library leaves names to the proxy.
    """
    if "://" not in proxy:
        return f"http://{proxy}"
    scheme, _, rest = proxy.partition("://")
    return f"socks5h://{rest}" if scheme.lower() == "socks" else f"{scheme.lower()}://{rest}"


def _variable(kind: str) -> str:
    names = (f"{kind}_proxy", f"{kind.upper()}_PROXY")
    return next((name for name in names if os.environ.get(name)), f"the system's {kind} proxy")


def _check(proxy: Proxy, host: str, use: str) -> None:
    """Raise UsageError for a proxy that is not an address, or that nothing installed here can
    use.
    """
    direct = f"connect directly: NO_PROXY={host}"
    try:
        parts = urlsplit(proxy.url)
        valid = (
            parts.scheme in ("http", "https", *_SOCKS) and bool(parts.hostname) and parts.port != 0
        )
    except ValueError:
        valid = False
    if not valid:
        raise UsageError(
            f"{proxy.variable} is not a valid proxy address for {host}",
            f"Set {proxy.variable} to http://HOST:PORT or socks5://HOST:PORT, or {direct}",
        )
    if parts.scheme in _SOCKS and find_spec(_SOCKS_PACKAGES[use]) is None:
        raise UsageError(
            f"{proxy.variable} names a SOCKS proxy for {host}, but the packages for SOCKS are not installed",
            f"Run pip install socksio 'python-socks[asyncio]', or {direct}",
        )


class ProxyTransport(httpx.AsyncBaseTransport):
    """Sends each request of a client directly, or through the proxy that the environment names for
    its host.

    `direct` sends the direct requests. Raises UsageError, in a request, for a proxy that cannot be
    used.
    """

    def __init__(
        self, direct: httpx.AsyncBaseTransport | None = None, limits: httpx.Limits | None = None
    ) -> None:
        self._limits = limits or httpx.Limits()
        self._transports: dict[str | None, httpx.AsyncBaseTransport] = {
            None: direct or httpx.AsyncHTTPTransport(limits=self._limits)
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        proxy = proxy_url(str(request.url))
        if proxy not in self._transports:
            self._transports[proxy] = httpx.AsyncHTTPTransport(proxy=proxy, limits=self._limits)
        return await self._transports[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            await transport.aclose()
