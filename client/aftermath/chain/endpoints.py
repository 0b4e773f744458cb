"""Where an RPC node is, and one bounded HTTP conversation with it.

Decided: replies are read as plain JSON up to a size limit. solders builds the requests, but its reply parsers refuse
a whole answer for one unknown error variant, which every release of the validator may add. Of compressed replies gzip
alone is taken, and unpacked up to the same limit: some kilobytes of others are gigabytes, and exist before they are
counted. Addresses are shown without path and query, because providers put API keys there. The clusters that everybody
knows have names, which are taken wherever a node's address is; what else is asked of them needs an address.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import httpx
from solders.rpc.requests import GetProgramAccounts, GetSignaturesForAddress

from aftermath.base.bounded import MAX_JSON_VALUES, json_value
from aftermath.base.errors import UsageError
from aftermath.chain import defaults

MAX_REPLY = 64 << 20
"""Bytes of a reply, unpacked."""
MOST_VALUES = 1 << 15
"""JSON values of a reply to anything but the question for all accounts of a program, or for the transactions of one,
each of which may have a memo full of commas, and which no member asks: a number may be twenty bytes and take ten
microseconds, all of which nothing else is done in.
"""
_LISTS = (GetProgramAccounts, GetSignaturesForAddress)
_MOST_COOKIES = 16  # a service may know by one which of its nodes we were on
_GZIP = zlib.MAX_WBITS | 16
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
"""What may be said for a node's address, by name."""
PUBLIC_GENESIS = frozenset(
    (
        "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d",  # mainnet
        "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY",  # testnet
        "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG",  # devnet
    )
)
"""Genesis hashes of the public clusters: strangers own runs there, wherever the node is that we ask."""


class NoNextPort(UsageError):
    """Where a node's websocket is does not follow from its address, so it has to be said."""


class Request(Protocol):
    """A JSON-RPC request: anything that gives its own JSON (solders' requests, or `RawRequest`)."""

    def to_json(self) -> str: ...


@dataclass(frozen=True)
class RawRequest:
    """A request solders has no class for."""

    method: str
    params: tuple[Any, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"jsonrpc": "2.0", "id": 0, "method": self.method, "params": list(self.params)})


@dataclass(frozen=True)
class Endpoint:
    """An RPC node: its HTTP and its websocket address."""

    http: str
    ws: str

    @property
    def shown(self) -> str:
        """The address without path and query (they may hold an API key)."""
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
    """Return `url`, valid or mistyped, without user, password, path and query: providers put API keys there.

    What is left out of a mistyped address is shown as `…`.
    """
    begun = _SCHEME.match(url)
    scheme = begun[0] if begun else ""
    authority, *rest = re.split(r"[/?#\\\s]", url[len(scheme) :], maxsplit=1)
    _, at, host = authority.rpartition("@")
    if not at and rest and "@" in rest[0]:
        return f"{scheme}…"  # the password may hold a slash, so it is not known where the host begins
    known = _HOST.match(host)
    kept = known[0] if known else ""
    return scheme + kept + ("…" if kept != host else "")


def endpoint(http: str, ws: str | None = None) -> Endpoint:
    """Check the addresses and derive the websocket one when it is not given; `http` may be the name of a cluster.

    Derivation as in the Solana CLI: with an explicit port the websocket is on the next port, otherwise on the same
    host and path. Raises UsageError on an address that is not http(s):// or ws(s)://, and NoNextPort on one at the last
    port.
    """
    http = CLUSTERS.get(http, http)
    return Endpoint(_checked(http, ("http", "https")), _checked(ws, ("ws", "wss")) if ws else _derived(http))


def _checked(url: str, schemes: tuple[str, str]) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        names = "" if "http" not in schemes else f", or be one of {', '.join(CLUSTERS)}"
        raise UsageError(f"{shown(url)!r} is not an RPC address", f"It must look like {schemes[0]}://host:port{names}")
    return url


def _derived(http: str) -> str:
    parts = urlsplit(http)
    if parts.port == LAST_PORT:
        raise NoNextPort(f"{shown(http)} is at the last port, and its websocket at none after it", "Say where that is")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = f":{parts.port + 1}" if parts.port else ""
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, host + port, parts.path, parts.query, ""))


class HttpNode:
    """An RPC node over HTTP: reads at most MAX_REPLY bytes of a reply and gives it as checked JSON."""

    def __init__(self, url: str, session: httpx.AsyncClient) -> None:
        self.endpoint_uri, self.session = url, session
        self._asked = 0

    async def ask(self, request: Request, timeout: float) -> dict[str, Any]:
        """The reply's JSON object (with `result` or `error`) within `timeout` seconds.

        Raises TimeoutError, httpx.HTTPError (status codes included), or ValueError when the reply is too long, not
        JSON-RPC, or the reply to another request.
        """
        self._asked += 1
        asked = self._asked
        url, body = self.endpoint_uri, numbered(request, asked)
        if len(self.session.cookies.jar) > _MOST_COOKIES:
            self.session.cookies.clear()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "gzip"}
        async with (
            asyncio.timeout(timeout),
            self.session.stream("POST", url, content=body, headers=headers) as response,
        ):
            response.raise_for_status()
            received = await _body(response)
        return reply_to(asked, json_value(received, MAX_JSON_VALUES if isinstance(request, _LISTS) else MOST_VALUES))

    async def close(self) -> None:
        """Close the connections."""
        await self.session.aclose()


async def _body(response: httpx.Response) -> bytearray:
    """At most MAX_REPLY bytes. Raises ValueError."""
    if response.is_stream_consumed:  # it comes from within this process
        return bytearray(response.content)
    encoding, received = response.headers.get("Content-Encoding", "identity").strip().lower(), bytearray()
    if encoding not in ("identity", "gzip"):
        raise ValueError("reply in an encoding that was not asked for")
    unpacking = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    async for part in response.aiter_raw():
        received += part if unpacking is None else _unpacked(unpacking, part, MAX_REPLY + 1 - len(received))
        if len(received) > MAX_REPLY:
            raise ValueError(f"reply of more than {MAX_REPLY} bytes")
    if unpacking is not None and not unpacking.eof:
        raise ValueError("reply that is cut short")
    return received


def _unpacked(unpacking: zlib._Decompress, part: bytes, most: int) -> bytes:
    """What a part of a reply is, as far as it is no more than `most` bytes. Raises ValueError."""
    try:
        unpacked = unpacking.decompress(part, most)
    except zlib.error:
        raise ValueError("reply that cannot be unpacked") from None
    if unpacking.unused_data:
        raise ValueError("reply that goes on after its end")
    return unpacked


def numbered(request: Request, number: int) -> str:
    """The request's JSON with `number` as its id, by which its reply is known."""
    return json.dumps({**json.loads(request.to_json()), "id": number})


def reply_to(number: int, reply: Any) -> dict[str, Any]:
    """`reply`, if it is one to request `number`. ValueError for anything else.

    Only an error may come without an id: what stands before a node (a rate limiter) has not read the request.
    """
    if not isinstance(reply, dict) or ("result" not in reply and "error" not in reply):
        raise ValueError("reply is not JSON-RPC")
    of = reply.get("id")
    if (of is None and reply.get("error") is None) or (of is not None and (type(of) is not int or of != number)):
        raise ValueError("reply to another request")
    return reply


def describe(error: BaseException) -> str:
    """A few words for what went wrong with a node."""
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
    """Return a fix for a node's refusal of a request, empty where there is no better one than for any failure."""
    if not isinstance(error, httpx.HTTPStatusError):
        return ""
    code = error.response.status_code
    if code in (401, 403):
        return "Check the API key in the RPC address, and that your account at the provider may use this network"
    if code == 429:
        return "Wait a minute, or pass an --rpc address with your own API key: this node limits the request rate"
    if target := _redirect(error.response):
        return f"Pass --rpc {target}, the address that the node redirects to"
    return "Check the path of the RPC address: a web server is there, but not an RPC node" if code == 404 else ""


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
