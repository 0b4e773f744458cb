"""Copy checkpoints to a bucket by signed links: one HTTP PUT for each file, without a key to the
bucket.

The links are a JSON object, in a local file or at an https address that signs links. Links expire,
so they are read again before each upload. Messages show only the host of a link.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.proxies import is_this_machine, proxy_url
from aftermath.base.rate_limit import Backoff, retry_after
from aftermath.base.text import counted
from aftermath.chain.endpoints import describe, shown
from aftermath.model.json_documents import CheckpointError, read_limited

CHECKPOINT = "{checkpoint}"
"""Placeholder in an address for the name of a checkpoint's directory."""
MAX_LINKS_BYTES = 1 << 20
_TRIES = 5
_FIRST = 4.0  # seconds before the first retry
_LONGEST = 64.0  # longest pause before a retry in seconds, even if Retry-After is longer
_AGAIN = (408, 429)  # statuses to retry, besides all from 500 on
_TIMEOUT = httpx.Timeout(60.0, read=300.0)  # storage may answer only once it has stored gigabytes
_FORM = 'Use a JSON object with a link for each file, such as {"model.safetensors": "https://…"}'


class PutLinks:
    """Uploads checkpoints by the signed links of one source."""

    def __init__(self, source: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._source = source
        self._sleep = sleep

    def check(self) -> None:
        """Raise CheckpointError if a file has no links, or an address is not https."""
        if not _is_address(self._source):
            _parsed(read_limited(Path(self._source), MAX_LINKS_BYTES), self._source)
        elif not _is_safe(self._source):
            raise CheckpointError(
                f"{shown(self._source)} is not an https address: others could read the links in transit",
                "Use an https address, or a JSON file",
            )

    def put(self, directory: Path, _message: str = "") -> str:
        """Upload a checkpoint's files, and return a sentence that says where they are. Raises
        CheckpointError.
        """
        files = _files(directory)
        hosts: list[str] = []
        for file in files:
            link = self._link(directory.name, file.name, files)
            self._answer("PUT", link, f"the PUT of {file.name}", file)
            hosts.append(shown(link))
        return (
            f"{', '.join(dict.fromkeys(hosts))} ({counted(len(files), 'file')} of {directory.name})"
        )

    def _link(self, checkpoint: str, name: str, files: Sequence[Path]) -> str:
        """Return the link for a file. Raises CheckpointError unless all files have one."""
        if _is_address(self._source):
            address = self._source.replace(CHECKPOINT, quote(checkpoint, safe=""))
            links = _parsed(self._answer("GET", address, "the request for links"), shown(address))
        else:
            links = _parsed(read_limited(Path(self._source), MAX_LINKS_BYTES), self._source)
        if missing := [file.name for file in files if file.name not in links]:
            raise CheckpointError(f"there is no link for {', '.join(missing)}", _FORM)
        return links[name]

    def _answer(self, method: str, url: str, request: str, file: Path | None = None) -> bytes:
        """Return a server's answer. Retry if that may help. Raises CheckpointError."""
        why = ""
        retry_after_s = 0.0
        pauses = Backoff(_FIRST, _LONGEST)
        for number in range(_TRIES):
            if number:
                self._sleep(max(pauses.next(), retry_after_s))
            try:
                status, answer, header = _asked(method, url, file)
            except httpx.TransportError as error:
                why = describe(error)
                retry_after_s = 0.0
                continue
            if 200 <= status < 300:
                return answer
            why = f"it answered {status}"
            retry_after_s = retry_after(header, _LONGEST)
            if status < 500 and status not in _AGAIN:
                expired = (
                    ": the link has expired, or is signed for another request"
                    if file is not None
                    else ""
                )
                raise CheckpointError(
                    f"{shown(url)} refused {request} ({status}){expired}", "Sign new links"
                )
        raise CheckpointError(
            f"{request} to {shown(url)} failed {_TRIES} times: {why}",
            "Check that server. The files stay in the checkpoint directory",
        )


def _asked(method: str, url: str, file: Path | None) -> tuple[int, bytes, str | None]:
    """Send one request, with the file's bytes as its body if there is one. Return (status, body,
    Retry-After).
    """
    with ExitStack() as stack:
        client = stack.enter_context(
            httpx.Client(proxy=proxy_url(url), trust_env=False, timeout=_TIMEOUT)
        )
        content = stack.enter_context(file.open("rb")) if file is not None else None
        response = stack.enter_context(client.stream(method, url, content=content))
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_LINKS_BYTES:
                raise CheckpointError(
                    f"{shown(url)} answered more than {MAX_LINKS_BYTES} bytes", _FORM
                )
        return response.status_code, bytes(body), response.headers.get("Retry-After")


def _files(directory: Path) -> list[Path]:
    """Return a checkpoint's files, `config.json` last: its arrival completes the checkpoint."""
    files = [
        path for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")
    ]
    return sorted(files, key=lambda path: (path.name == "config.json", path.name))


def _parsed(document: bytes, called: str) -> dict[str, str]:
    try:
        links: dict[str, str] = json_as(document, dict[str, str])
    except Malformed:  # whose message may quote a link
        raise CheckpointError(f"{called} is not a JSON object of links", _FORM) from None
    for name, link in links.items():
        if not _is_safe(link):
            raise CheckpointError(f"{called}: the link for {name} is not an https address", _FORM)
    return links


def _is_address(source: str) -> bool:
    """Return whether `source` looks like an address.

    Even a mistyped address counts: an error about a file would print it, with its secrets.
    """
    return "://" in source


def _is_safe(url: str) -> bool:
    """Return whether nobody in transit can read the address: https, or a server on this machine."""
    try:
        address = urlsplit(url)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return False
    host = address.hostname or ""
    return bool(host) and (
        address.scheme == "https" or (address.scheme == "http" and is_this_machine(host))
    )
