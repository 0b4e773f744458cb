"""Token files behind HTTP, read in parts.

Decided
- A file is looked at once, with one request for its first bytes; its size and its ETag are pinned
  then. An answer of another size or ETag is refused: sequences of two versions of a file would be
  nobody's data.
- Every read is a Range request, and adjacent ones are one request. A server that sends whole files
  instead is refused before its answer is read. No answer is read beyond what was asked for.
- What passes by itself (no connection, 408, 425, 429, 5xx, an answer that is cut or too slow) is
  tried TRIES times, and is then `SourceAway`. Whatever else a server says is not going to change.
- A try has a deadline for all of it, so it runs on an event loop: a server that sends a byte now
  and then, of headers or of what comes before them, could otherwise stall the client without end.
- Redirects lead to http and https only, and from https to nothing less. The rest of a redirect is
  not read: some kilobytes of it may be gigabytes. Cookies are not kept. Addresses are told without
  user, password and query, which may be secret.
- A cache (`cache`) keeps sequences on disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpcore
import httpx

from aftermath.base.concurrency import each
from aftermath.base.files import fix_of, settle
from aftermath.base.outputs import write_mark
from aftermath.base.proxies import ProxyTransport, proxy_for
from aftermath.base.rate_limit import doubled, retry_after
from aftermath.base.run_access import Permits, any_address, permitted
from aftermath.data.cache import Cache
from aftermath.data.formats import HEAD_BYTES
from aftermath.data.source import SLOWEST, DataError, File, SourceAway, Span


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


TRIES = 4
_LONGEST_PAUSE = 8.0  # seconds
_LONGEST_WANTED = 60.0  # seconds of a Retry-After that are waited
AT_ONCE = 8  # requests
_LAST_PORT = 65535
_MOST_REDIRECTS = 5
MOST_FILES = 1 << 16
"""Files of one data location, and of all in a mixture. Each is looked at when the data is
opened.
"""
_PASSING = {408, 425, 429}
_MOST_AT_ONCE = 16 << 20  # bytes of one request, where many sequences are adjacent
_WORDS: dict[type[Exception], str] = {
    httpx.ConnectError: "no connection",
    httpx.ConnectTimeout: "no connection in time",
    httpx.ReadTimeout: "no answer in time",
    httpx.RemoteProtocolError: "its answer was cut short",
    httpx.ReadError: "its answer was cut short",
}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")

T = TypeVar("T")


@dataclass(frozen=True)
class _Part:
    """An answer to a Range request."""

    data: bytes
    size: int
    """Of the whole file."""
    etag: str


class HttpClient:
    """Kept connections to servers; `pause` seconds pass before a second try, then twice as many
    each time.
    """

    def __init__(self, *, pause: float = 0.5, timeout: float = 10.0, permits: Permits = any_address) -> None:
        """`permits` says which IP addresses may be connected to, also after a redirect."""
        self._pause, self._timeout = pause, timeout
        limits = httpx.Limits(max_connections=AT_ONCE)
        self._client = httpx.AsyncClient(
            timeout=timeout, headers={"Accept-Encoding": "identity"}, transport=transport(permits, limits)
        )

    def part(self, url: str, start: int, length: int) -> _Part:
        """Return `length` bytes of a file from `start`, or fewer at its end. Raises SourceAway,
        DataError.
        """

        async def ask() -> _Part:
            async with self._opened(url, {"Range": f"bytes={start}-{start + length - 1}"}) as answer:
                if answer.status_code == 416:
                    raise DataError(f"{shown(url)} is empty, or ends before byte {start}", "Upload the file again")
                self._refuse_status(url, answer)
                found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if answer.status_code != 206 or found is None:
                    raise DataError(
                        f"{shown(url)} is not served in parts: a Range request was answered with status "
                        f"{answer.status_code}",
                        "Serve the files with a server that answers Range requests, as nginx and buckets do",
                    )
                first, last, size = map(int, found.groups())
                if first != start or last != min(start + length, size) - 1:
                    raise DataError(
                        f"{shown(url)}: bytes {first} to {last} were sent for {start} to {start + length - 1}"
                    )
                data = await self._body(answer, last - first + 1)
                return _Part(data, size, answer.headers.get("ETag", "") or answer.headers.get("Last-Modified", ""))

        return self._patiently(url, ask, length)

    def document(self, url: str, most: int) -> bytes:
        """A whole document of at most `most` bytes. Raises SourceAway, DataError."""

        async def ask() -> bytes:
            async with self._opened(url, {}) as answer:
                self._refuse_status(url, answer)
                stated = answer.headers.get("Content-Length", "0")
                if not stated.isdecimal() or int(stated) > most:
                    raise DataError(f"{shown(url)} is longer than the {most} bytes that are allowed")
                return await self._body(answer, most, whole=False)

        return self._patiently(url, ask, most)

    def _patiently(self, url: str, ask: Callable[[], Coroutine[object, object, T]], length: int) -> T:
        """What `ask` gives, tried again while that may help, each time for as long as `length`
        bytes may take.
        """

        async def asked() -> T:
            async with asyncio.timeout(2 * self._timeout + length / SLOWEST):
                return await ask()

        said = ""
        wanted = 0.0  # seconds that the server asks for
        for attempt in range(TRIES):
            if attempt:
                time.sleep(max(doubled(attempt, self._pause, _LONGEST_PAUSE), wanted))
            wanted = 0.0
            try:
                return asyncio.run_coroutine_threadsafe(asked(), _loop()).result()
            except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.TooManyRedirects, ValueError) as error:
                raise DataError(f"{shown(url)} leads nowhere: {type(error).__name__}", "Check the address") from None
            except _Passing as error:
                said = str(error)
                wanted = error.pause
            except TimeoutError:
                said = "it sends too slowly"
            except httpx.HTTPError as error:
                said = _WORDS.get(type(error), type(error).__name__)
        raise SourceAway(f"cannot read {shown(url)}: {said}", _fix(url, said))

    @asynccontextmanager
    async def _opened(self, url: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """The answer that redirects lead to; its body is still to be read."""
        request = self._client.build_request("GET", url, headers=headers)
        for _ in range(1 + _MOST_REDIRECTS):
            self._client.cookies.clear()
            answer = await self._client.send(request, stream=True)
            try:
                if answer.next_request is None:
                    yield answer
                    return
                _check_redirect(answer)
                request = answer.next_request
            finally:
                await answer.aclose()
        raise httpx.TooManyRedirects("too many redirects", request=request)

    def _refuse_status(self, url: str, answer: httpx.Response) -> None:
        if answer.is_success:
            return
        code = answer.status_code
        if code >= 500 or code in _PASSING:
            raise _Passing(f"status {code}", retry_after(answer.headers.get("Retry-After"), _LONGEST_WANTED))
        raise DataError(f"{shown(url)} is refused with status {code}", "Check the address, and that it is public")

    async def _body(self, answer: httpx.Response, length: int, *, whole: bool = True) -> bytes:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise DataError(f"{shown(str(answer.url))} is sent compressed", "Serve token files as they are")
        until, held = time.monotonic() + self._timeout + length / SLOWEST, bytearray()
        async for chunk in answer.aiter_raw():
            held += chunk
            if len(held) > length:
                raise DataError(f"{shown(str(answer.url))}: more was sent than was asked for")
            if time.monotonic() > until:
                raise _Passing("it sends too slowly")
        if whole and len(held) < length:
            raise _Passing("its answer was cut short")
        return bytes(held)


def _fix(url: str, why: str) -> str:
    """Return what helps where a server cannot be read."""
    if why == "status 429":
        return "Wait a minute; the server limits the request rate"
    proxy = proxy_for(url)
    if proxy is None:
        return "Check that the server is up"
    return f"Check that the server is up, and that the proxy that {proxy.variable} names can reach it"


class _Passing(Exception):
    """Something that may be better at the next try, `pause` seconds from now at the earliest."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


_loop_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop on which all clients of this process send requests."""
    with _loop_lock:  # `cache` alone would let several first callers start a loop each
        return _started_loop()


@cache
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop


class HttpFiles:
    """Files behind URLs as a store. Making it looks at every file once."""

    def __init__(self, urls: Sequence[str], client: HttpClient, cache: Cache | None = None) -> None:
        """Raises SourceAway, DataError."""
        self._urls, self._client = urls, client
        heads = each(lambda url: client.part(url, 0, HEAD_BYTES), urls, AT_ONCE)
        self._files = [File(shown(url), head.size, head.data) for url, head in zip(urls, heads, strict=True)]
        self._etags = [head.etag for head in heads]
        self._keys = [f"{url}\n{head.size}\n{head.etag}" for url, head in zip(urls, heads, strict=True)]
        self._cache = cache

    @property
    def files(self) -> Sequence[File]:
        """As they were when this was made."""
        return self._files

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """From the cache or the servers. Raises SourceAway, DataError."""
        held: dict[Span, bytes] = {}
        if self._cache is not None:
            for span in set(spans):
                if (kept := self._cache.get(self._keys[span.file], span.start, span.length)) is not None:
                    held[span] = kept
        for found in each(self._fetch, merged(set(spans) - held.keys()), AT_ONCE):
            for span, data in found.items():
                held[span] = data
                if self._cache is not None:
                    self._cache.put(self._keys[span.file], span.start, data)
        return [held[span] for span in spans]

    def _fetch(self, group: Sequence[Span]) -> dict[Span, bytes]:
        """Spans that lie next to each other, with one request."""
        number, start = group[0].file, group[0].start
        part = self._client.part(self._urls[number], start, sum(span.length for span in group))
        if part.size != self._files[number].size or part.etag != self._etags[number]:
            raise DataError(
                f"{self._files[number].name} was changed while in use: it had {self._files[number].size} bytes, "
                f"and has {part.size}" + (", and another ETag" if part.etag != self._etags[number] else ""),
                "The run's owner puts the file back as it was",
            )
        return {span: part.data[span.start - start : span.start - start + span.length] for span in group}


def merged(spans: Collection[Span]) -> list[list[Span]]:
    """The spans, sorted, in groups that lie next to each other, each of at most 16 MiB unless it is
    one span.
    """
    groups: list[list[Span]] = []
    for span in sorted(spans):
        last = groups[-1] if groups else []
        if (
            last
            and last[-1].file == span.file
            and last[-1].start + last[-1].length == span.start
            and span.start + span.length - last[0].start <= _MOST_AT_ONCE
        ):
            last.append(span)
        else:
            groups.append([span])
    return groups


def numbered(template: str, start: int, zeros: int, count: int) -> list[str]:
    """Return URLs with `{}` replaced by each number, padded with zeros. Raises DataError."""
    if count > MOST_FILES:
        raise DataError(
            f"{shown(template)} names {count} files, more than the {MOST_FILES} that are read",
            "Lower num_files, and put more tokens into each file",
        )
    if template.count("{}") != 1:
        raise DataError(
            f"url_template {shown(template)} has no single {{}} for the number", "Write {} where it belongs"
        )
    return [template.replace("{}", str(number).zfill(zeros)) for number in range(start, start + count)]


def check_url(url: str) -> None:
    """Raise DataError for an invalid URL."""
    try:
        parts = httpx.URL(url)
        leads = parts.scheme in ("http", "https") and bool(parts.host) and (parts.port or 0) <= _LAST_PORT
    except (httpx.InvalidURL, UnicodeError):
        leads = False
    if not leads:
        raise DataError(f"{shown(url)} leads nowhere: it is no http address", "Check the address")


def shown(url: str) -> str:
    """An address as messages name it: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    except ValueError:
        return "an address that is none"


def _check_redirect(answer: httpx.Response) -> None:
    target = answer.url.join(answer.headers["Location"])
    if target.scheme not in ("http", "https") or (answer.url.scheme == "https" and target.scheme != "https"):
        raise DataError(f"{shown(str(answer.url))} redirects to {target.scheme}:, which is not followed")


_PART = 8 << 20  # bytes of a request


def download(url: str, folder: Path, client: HttpClient, told: Callable[[int, int], None]) -> Path:
    """One file into a folder, under the last part of its address; `told` hears (bytes here, bytes in all).

    Raises SourceAway, DataError.
    """
    path = folder / shown(url).rsplit("/", 1)[-1]
    first = client.part(url, 0, 1)
    mark = hashlib.sha256(f"{first.size} {first.etag}".encode()).hexdigest()[:16]
    partial = path.with_name(f"{path.name}.{mark}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.stat().st_size == first.size:
                return path
            raise DataError(f"{path} is there already, and of another size", "Remove it or name another folder")
        with partial.open("ab") as file:
            while (here := file.tell()) < first.size:
                part = client.part(url, here, min(_PART, first.size - here))
                if (part.size, part.etag) != (first.size, first.etag):
                    raise DataError(f"{shown(url)} was changed while it was downloaded", "Start again")
                file.write(part.data)
                told(file.tell(), first.size)
        settle(partial, path)
        write_mark(folder, "data fetch")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", fix_of(error, "folder")) from None
    return path
