"""The addresses of an RPC node, and what to tell a user about a node that fails.

Addresses are printed without path and query, because providers put API keys there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

import httpx

from aftermath.base.errors import UsageError
from aftermath.chain import defaults

LAST_PORT = 65535
_SCHEME = re.compile(r"[^:/@\s]*:?/+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[\w.-]*)(:[0-9]{1,5}(?![\w.-]))?")
_URL = re.compile(r"\b[a-z]+://\S+")
CLUSTERS = {
    "localnet": defaults.RPC,
    "devnet": "https://api.devnet.solana.com",
    "testnet": "https://api.testnet.solana.com",
    "mainnet": "https://api.mainnet-beta.solana.com",
}
"""Addresses by the cluster names that users may give instead."""
PUBLIC_GENESIS = frozenset(
    (
        "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",  # mainnet
        "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY",  # testnet
        "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG",  # devnet
    )
)
"""Genesis hashes of the public clusters. Strangers own runs there, even if the node runs on this
machine.
"""


class NoNextPort(UsageError):
    """The websocket's address does not follow from the HTTP address, so the user must give it."""


@dataclass(frozen=True)
class Endpoint:
    """An RPC node: its HTTP and its websocket address."""

    http: str
    ws: str

    @property
    def shown(self) -> str:
        """The HTTP address without path and query, which may hold an API key."""
        return shown(self.http)

    @property
    def is_loopback(self) -> bool:
        host = urlsplit(self.http).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def shown(url: str) -> str:
    """Return `url`, valid or mistyped, without user, password, path and query: providers put API
    keys there.

    What is left out of a mistyped address is shown as `…`.
    """
    scheme_match = _SCHEME.match(url)
    scheme = scheme_match[0] if scheme_match else ""
    authority, *remainder = re.split(r"[/?#\\\s]", url[len(scheme) :], maxsplit=1)
    _, at, host = authority.rpartition("@")
    if not at and remainder and "@" in remainder[0]:
        # the password may contain a slash, so the start of the host is unknown
        return f"{scheme}…"
    host_match = _HOST.match(host)
    valid_host = host_match[0] if host_match else ""
    return scheme + valid_host + ("…" if valid_host != host else "")


def endpoint(http: str, ws: str | None = None) -> Endpoint:
    """Check the addresses and derive the websocket one when it is not given; `http` may be the name
    of a cluster.

    Derivation as in the Solana CLI: with an explicit port the websocket is on the next port,
    otherwise on the same host and path. Raises UsageError on an address that is not http(s):// or
    ws(s)://, and NoNextPort on one at the last port.
    """
    http = CLUSTERS.get(http, http)
    return Endpoint(
        _checked(http, ("http", "https")), _checked(ws, ("ws", "wss")) if ws else _derived(http)
    )


def _checked(url: str, schemes: tuple[str, str]) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        names = "" if "http" not in schemes else f", or one of {', '.join(CLUSTERS)}"
        raise UsageError(
            f"{shown(url)!r} is not an RPC address",
            f"Use an address like {schemes[0]}://host:port{names}",
        )
    return url


def _derived(http: str) -> str:
    parts = urlsplit(http)
    if parts.port == LAST_PORT:
        raise NoNextPort(
            f"{shown(http)} uses the last port, so its websocket cannot be at the next one",
            "Pass the websocket's address",
        )
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = f":{parts.port + 1}" if parts.port else ""
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, host + port, parts.path, parts.query, ""))


def describe(error: BaseException) -> str:
    """Describe a node's failure in a few words."""
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        target = _redirect(response)
        return f"HTTP {response.status_code}" + (f", a redirect to {target}" if target else "")
    if isinstance(error, TimeoutError | httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "cannot connect"
    if isinstance(error, httpx.HTTPError):
        return "connection broken"
    return _URL.sub(lambda url: shown(url[0]), str(error)) or type(error).__name__


def advice(error: BaseException) -> str:
    """Return a fix for a node's refusal, empty if there is no better one than for any failure."""
    if not isinstance(error, httpx.HTTPStatusError):
        return ""
    code = error.response.status_code
    if code in (401, 403):
        return "Check the API key in the RPC address, and whether your provider's plan includes this network"
    if code == 429:
        return "Wait a minute, or pass an --rpc address with your own API key: this node limits the request rate"
    if target := _redirect(error.response):
        return f"Pass --rpc {target}, the address that the node redirects to"
    return (
        "Check the path of the RPC address: the web server there is not an RPC node"
        if code == 404
        else ""
    )


def _redirect(response: httpx.Response) -> str:
    """Return where a redirect leads, without path and query; empty for other answers."""
    if not response.has_redirect_location:
        return ""
    try:
        target = response.url.join(response.headers["Location"])
    except (httpx.InvalidURL, ValueError):
        return ""
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"{target.scheme}://{host}" + (f":{target.port}" if target.port else "")
