"""Token files over HTTP, read in parts with Range requests, and whole downloads.

A file's size and ETag are pinned by its first reply; a reply of another version is refused.
Temporary failures are retried and end as SourceUnavailable. Connections, also of redirects, go
only to addresses that were checked. Errors name addresses without user, password and query.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx

from aftermath.base.allowed_locations import Permits, any_address
from aftermath.base.concurrency import each
from aftermath.base.files import fix_of, sync_and_rename
from aftermath.base.outputs import write_mark
from aftermath.base.proxies import proxy_for
from aftermath.base.rate_limit import doubled, retry_after
from aftermath.data.cache import Cache
from aftermath.data.checked_transport import checked_transport
from aftermath.data.formats import HEAD_BYTES
from aftermath.data.source import (
    MOST_FILES,
    SLOWEST,
    DataError,
    SourceUnavailable,
    Span,
    StoredFile,
)

TRIES = 4
_LONGEST_PAUSE = 8.0  # seconds
_LONGEST_WANTED = 60.0  # seconds; a longer Retry-After is cut
AT_ONCE = 8  # requests
_LAST_PORT = 65535
_MAX_REDIRECTS = 5
# Failed connections, these codes, 5xx, and short or slow replies are temporary. Other failures are
# final.
_TEMPORARY_CODES = {408, 425, 429}
_MAX_REQUEST_BYTES = 16 << 20  # bytes of adjacent sequences that one request reads
_WORDS: dict[type[Exception], str] = {
    httpx.ConnectError: "no connection",
    httpx.ConnectTimeout: "no connection in time",
    httpx.ReadTimeout: "no answer in time",
    httpx.RemoteProtocolError: "the answer was cut short",
    httpx.ReadError: "the answer was cut short",
}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")

T = TypeVar("T")


@dataclass(frozen=True)
class _RangeReply:
    """A reply to a Range request."""

    data: bytes
    size: int
    """Bytes of the whole file."""
    etag: str


# One deadline covers each whole attempt, so requests run on an event loop. Otherwise a server that
# sends a byte now and then could stall the client.
class HttpClient:
    """Persistent connections to servers. Waits `pause` seconds before the second try, then
    doubles.
    """

    def __init__(
        self, *, pause: float = 0.5, timeout: float = 10.0, permits: Permits = any_address
    ) -> None:
        """Make a client for the IP addresses that `permits` allows, also after a redirect."""
        self._pause = pause
        self._timeout = timeout
        limits = httpx.Limits(max_connections=AT_ONCE)
        self._client = httpx.AsyncClient(
            timeout=timeout,
            headers={"Accept-Encoding": "identity"},
            transport=checked_transport(permits, limits),
        )

    def read_range(self, url: str, start: int, length: int) -> _RangeReply:
        """Return `length` bytes of a file from `start`, or fewer at its end.

        Raise SourceUnavailable or DataError.
        """

        async def fetch() -> _RangeReply:
            async with self._following_redirects(
                url, {"Range": f"bytes={start}-{start + length - 1}"}
            ) as answer:
                if answer.status_code == 416:
                    raise DataError(
                        f"{redacted_url(url)} is empty, or ends before byte {start}",
                        "Upload the file again",
                    )
                self._refuse_status(url, answer)
                content_range = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
                if answer.status_code != 206 or content_range is None:
                    raise DataError(
                        f"{redacted_url(url)} does not support Range requests (status {answer.status_code})",
                        "Serve the files with a server that supports them, such as nginx or a bucket",
                    )
                first, last, size = map(int, content_range.groups())
                if first != start or last != min(start + length, size) - 1:
                    raise DataError(
                        f"{redacted_url(url)} sent bytes {first} to {last} instead of {start} to {start + length - 1}"
                    )
                data = await self._body(answer, last - first + 1)
                return _RangeReply(
                    data,
                    size,
                    answer.headers.get("ETag", "") or answer.headers.get("Last-Modified", ""),
                )

        return self._with_retries(url, fetch, length)

    def read_document(self, url: str, most: int) -> bytes:
        """Return a document of at most `most` bytes. Raise SourceUnavailable or DataError."""

        async def fetch() -> bytes:
            async with self._following_redirects(url, {}) as answer:
                self._refuse_status(url, answer)
                stated = answer.headers.get("Content-Length", "0")
                if not stated.isdecimal() or int(stated) > most:
                    raise DataError(f"{redacted_url(url)} is longer than the limit of {most} bytes")
                return await self._body(answer, most, whole=False)

        return self._with_retries(url, fetch, most)

    def _with_retries(
        self, url: str, fetch: Callable[[], Coroutine[object, object, T]], length: int
    ) -> T:
        """Return the result of `fetch`, with retries. The deadline of a try grows with `length`
        bytes.
        """

        async def attempt_once() -> T:
            async with asyncio.timeout(2 * self._timeout + length / SLOWEST):
                return await fetch()

        failure = ""
        pause = 0.0  # seconds, from Retry-After
        for attempt in range(TRIES):
            if attempt:
                time.sleep(max(doubled(attempt, self._pause, _LONGEST_PAUSE), pause))
            pause = 0.0
            try:
                return asyncio.run_coroutine_threadsafe(attempt_once(), _loop()).result()
            except (
                httpx.UnsupportedProtocol,
                httpx.InvalidURL,
                httpx.TooManyRedirects,
                ValueError,
            ) as error:
                raise DataError(
                    f"cannot open {redacted_url(url)}: {type(error).__name__}",
                    "Check the address",
                ) from None
            except _TemporaryFailure as error:
                failure = str(error)
                pause = error.pause
            except TimeoutError:
                failure = "the server sends too slowly"
            except httpx.HTTPError as error:
                failure = _WORDS.get(type(error), type(error).__name__)
        raise SourceUnavailable(f"cannot read {redacted_url(url)}: {failure}", _fix(url, failure))

    @asynccontextmanager
    async def _following_redirects(
        self, url: str, headers: dict[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Yield the reply after all redirects, with its body unread."""
        request = self._client.build_request("GET", url, headers=headers)
        for _ in range(1 + _MAX_REDIRECTS):
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
        if code >= 500 or code in _TEMPORARY_CODES:
            raise _TemporaryFailure(
                f"status {code}", retry_after(answer.headers.get("Retry-After"), _LONGEST_WANTED)
            )
        raise DataError(
            f"the server refused {redacted_url(url)} with status {code}",
            "Check the address, and that the file is public",
        )

    async def _body(self, answer: httpx.Response, length: int, *, whole: bool = True) -> bytes:
        if answer.headers.get("Content-Encoding", "identity") != "identity":
            raise DataError(
                f"the server compresses {redacted_url(str(answer.url))}",
                "Serve token files without Content-Encoding",
            )
        deadline = time.monotonic() + self._timeout + length / SLOWEST
        received = bytearray()
        async for chunk in answer.aiter_raw():
            received += chunk
            if len(received) > length:
                raise DataError(
                    f"the server sent more of {redacted_url(str(answer.url))} than requested"
                )
            if time.monotonic() > deadline:
                raise _TemporaryFailure("the server sends too slowly")
        if whole and len(received) < length:
            raise _TemporaryFailure("the answer was cut short")
        return bytes(received)


def _fix(url: str, why: str) -> str:
    """Return the fix for a server that cannot be read."""
    if why == "status 429":
        return "Wait a minute: the server limits the request rate"
    proxy = proxy_for(url)
    if proxy is None:
        return "Check that the server is up"
    return f"Check that the server is up, and that the proxy in {proxy.variable} can reach it"


class _TemporaryFailure(Exception):
    """A temporary failure. The next try should wait at least `pause` seconds."""

    def __init__(self, why: str, pause: float = 0.0) -> None:
        super().__init__(why)
        self.pause = pause


_loop_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop on which all clients of this process send requests."""
    with _loop_lock:  # `cache` alone lets several first callers start a loop each
        return _started_loop()


@cache
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="http", daemon=True).start()
    return loop


class HttpFiles:
    """A store of files behind URLs. Opening it sends one request per file."""

    def __init__(self, urls: Sequence[str], client: HttpClient, cache: Cache | None = None) -> None:
        """Read the first bytes of each file. Raise SourceUnavailable or DataError."""
        self._urls = urls
        self._client = client
        heads = each(lambda url: client.read_range(url, 0, HEAD_BYTES), urls, AT_ONCE)
        self._files = [
            StoredFile(redacted_url(url), head.size, head.data)
            for url, head in zip(urls, heads, strict=True)
        ]
        self._etags = [head.etag for head in heads]
        self._keys = [
            f"{url}\n{head.size}\n{head.etag}" for url, head in zip(urls, heads, strict=True)
        ]
        self._cache = cache

    @property
    def files(self) -> Sequence[StoredFile]:
        """Return the files as they were when the store was opened."""
        return self._files

    def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Read from the cache or the servers. Raise SourceUnavailable or DataError."""
        cached: dict[Span, bytes] = {}
        if self._cache is not None:
            for span in set(spans):
                if (
                    cached_part := self._cache.get(self._keys[span.file], span.start, span.length)
                ) is not None:
                    cached[span] = cached_part
        for span_data in each(self._fetch, merge_adjacent(set(spans) - cached.keys()), AT_ONCE):
            for span, data in span_data.items():
                cached[span] = data
                if self._cache is not None:
                    self._cache.put(self._keys[span.file], span.start, data)
        return [cached[span] for span in spans]

    def _fetch(self, group: Sequence[Span]) -> dict[Span, bytes]:
        """Fetch adjacent spans with one request."""
        number = group[0].file
        start = group[0].start
        read_range = self._client.read_range(
            self._urls[number], start, sum(span.length for span in group)
        )
        if read_range.size != self._files[number].size or read_range.etag != self._etags[number]:
            raise DataError(
                f"{self._files[number].name} changed while in use, from {self._files[number].size} to "
                f"{read_range.size} bytes"
                + (" and to another ETag" if read_range.etag != self._etags[number] else ""),
                "Ask the run's owner to restore the file",
            )
        return {
            span: read_range.data[span.start - start : span.start - start + span.length]
            for span in group
        }


def merge_adjacent(spans: Collection[Span]) -> list[list[Span]]:
    """Return the spans in sorted groups of adjacent ones.

    A group has at most 16 MiB unless it is one span.
    """
    groups: list[list[Span]] = []
    for span in sorted(spans):
        last = groups[-1] if groups else []
        if (
            last
            and last[-1].file == span.file
            and last[-1].start + last[-1].length == span.start
            and span.start + span.length - last[0].start <= _MAX_REQUEST_BYTES
        ):
            last.append(span)
        else:
            groups.append([span])
    return groups


def numbered_urls(template: str, start: int, zeros: int, count: int) -> list[str]:
    """Return URLs with `{}` replaced by each zero-padded number. Raise DataError."""
    if count > MOST_FILES:
        raise DataError(
            f"{redacted_url(template)} names {count} files, more than the limit of {MOST_FILES}",
            "Lower num_files, and put more tokens into each file",
        )
    if template.count("{}") != 1:
        raise DataError(
            f"url_template {redacted_url(template)} must contain {{}} exactly once",
            "Write {} in place of the file number",
        )
    return [
        template.replace("{}", str(number).zfill(zeros)) for number in range(start, start + count)
    ]


def check_url(url: str) -> None:
    """Raise DataError for an invalid URL."""
    try:
        url_parts = httpx.URL(url)
        leads = (
            url_parts.scheme in ("http", "https")
            and bool(url_parts.host)
            and (url_parts.port or 0) <= _LAST_PORT
        )
    except (httpx.InvalidURL, UnicodeError):
        leads = False
    if not leads:
        raise DataError(f"{redacted_url(url)} is not a valid HTTP address", "Correct the address")


def redacted_url(url: str) -> str:
    """Return an address without user, password, query and fragment, to show it."""
    try:
        url_parts = urlsplit(url)
        return f"{url_parts.scheme}://{url_parts.netloc.rpartition('@')[2]}{url_parts.path}"
    except ValueError:
        return "an invalid address"


# Never read the body of a redirect: a few kilobytes may decompress to gigabytes.
def _check_redirect(answer: httpx.Response) -> None:
    target = answer.url.join(answer.headers["Location"])
    if target.scheme not in ("http", "https") or (
        answer.url.scheme == "https" and target.scheme != "https"
    ):
        raise DataError(
            f"{redacted_url(str(answer.url))} redirects to {target.scheme}:, which this client does not follow"
        )


_DOWNLOAD_BYTES = 8 << 20  # per request


# A file gets its final name when it is complete. Until then its name has a hash of size and ETag
# and ends in `.partial`, and a later call resumes it.
def download(
    url: str, folder: Path, client: HttpClient, progress: Callable[[int, int], None]
) -> Path:
    """Download a file to a folder, named by the last part of its address.

    `progress` gets (downloaded bytes, all bytes). Raise SourceUnavailable or DataError.
    """
    path = folder / redacted_url(url).rsplit("/", 1)[-1]
    first = client.read_range(url, 0, 1)
    version = hashlib.sha256(f"{first.size} {first.etag}".encode()).hexdigest()[:16]
    partial = path.with_name(f"{path.name}.{version}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            if path.stat().st_size == first.size:
                return path
            raise DataError(
                f"{path} already exists with another size", "Remove it, or name another folder"
            )
        with partial.open("ab") as file:
            while (here := file.tell()) < first.size:
                read_range = client.read_range(url, here, min(_DOWNLOAD_BYTES, first.size - here))
                if (read_range.size, read_range.etag) != (first.size, first.etag):
                    raise DataError(
                        f"{redacted_url(url)} changed during the download", "Start again"
                    )
                file.write(read_range.data)
                progress(file.tell(), first.size)
        sync_and_rename(partial, path)
        write_mark(folder, "data fetch")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}", fix_of(error, "folder")) from None
    return path
