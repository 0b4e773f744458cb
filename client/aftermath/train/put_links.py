"""Copies of checkpoints in a bucket, by signed links: one PUT of each file, without a key to the bucket here.

A JSON object names a link for every file: in a local file, or as the answer of an https address that signs. Links
expire, so they are read again before each file. No message shows more of a link than its host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from aftermath.base.bounded import Malformed, json_as
from aftermath.base.counted import counted
from aftermath.base.proxies import is_this_machine, proxy_url
from aftermath.chain.endpoints import describe, shown
from aftermath.model.documents import CheckpointError, read_limited

CHECKPOINT = "{checkpoint}"
"""Stands in an address for the name of a checkpoint's directory."""
MAX_LINKS_BYTES = 1 << 20
PAUSES = (1.0, 4.0, 16.0, 64.0)
"""Seconds before each further try."""
_AGAIN = (408, 429)  # and all from 500 on
_TIMEOUT = httpx.Timeout(60.0, read=300.0)  # storage may answer only once it has stored gigabytes
_FORM = 'It is a JSON object such as {"model.safetensors": "https://…"}, with a link for each file'


class PutLinks:
    """Where the signed links come from, and what puts files there."""

    def __init__(self, source: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._source, self._sleep = source, sleep

    def check(self) -> None:
        """Raise CheckpointError if the source can name no links; an address is not asked yet."""
        if not _is_address(self._source):
            _parsed(read_limited(Path(self._source), MAX_LINKS_BYTES), self._source)
        elif not _is_safe(self._source):
            raise CheckpointError(
                f"{shown(self._source)} is not an https address: others could read the links on their way",
                "Name an https address, or a JSON file",
            )

    def put(self, directory: Path, _message: str = "") -> str:
        """Put a checkpoint's files and say where they are. Raises CheckpointError."""
        files = _files(directory)
        hosts: list[str] = []
        for file in files:
            link = self._link(directory.name, file.name, files)
            self._answer("PUT", link, f"the PUT of {file.name}", file)
            hosts.append(shown(link))
        return f"{', '.join(dict.fromkeys(hosts))} ({counted(len(files), 'file')} of {directory.name})"

    def _link(self, checkpoint: str, name: str, files: Sequence[Path]) -> str:
        """Return the link for a file, once there are links for all."""
        if _is_address(self._source):
            address = self._source.replace(CHECKPOINT, quote(checkpoint, safe=""))
            links = _parsed(self._answer("GET", address, "the question for links"), shown(address))
        else:
            links = _parsed(read_limited(Path(self._source), MAX_LINKS_BYTES), self._source)
        if missing := [file.name for file in files if file.name not in links]:
            raise CheckpointError(f"no link is named for {', '.join(missing)}", _FORM)
        return links[name]

    def _answer(self, method: str, url: str, what: str, file: Path | None = None) -> bytes:
        """Return what a server answers, after some tries where another one may help. Raises CheckpointError."""
        why = ""
        for number in range(len(PAUSES) + 1):
            if number:
                self._sleep(PAUSES[number - 1])
            try:
                status, answer = _asked(method, url, file)
            except httpx.TransportError as error:
                why = describe(error)
                continue
            if 200 <= status < 300:
                return answer
            why = f"it answered {status}"
            if status < 500 and status not in _AGAIN:
                expired = ": the link has expired, or is signed for something else" if file is not None else ""
                raise CheckpointError(f"{shown(url)} refused {what} ({status}){expired}", "Sign new links")
        raise CheckpointError(
            f"{shown(url)} did not take {what} in {len(PAUSES) + 1} tries: {why}", "Look at that server; files stay"
        )


def _asked(method: str, url: str, file: Path | None) -> tuple[int, bytes]:
    """Send one request, with a file's bytes and their number, and return (status, body)."""
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(proxy=proxy_url(url), trust_env=False, timeout=_TIMEOUT))
        content = stack.enter_context(file.open("rb")) if file is not None else None
        response = stack.enter_context(client.stream(method, url, content=content))
        body = bytearray()
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_LINKS_BYTES:
                raise CheckpointError(f"{shown(url)} answered more than {MAX_LINKS_BYTES} bytes", _FORM)
        return response.status_code, bytes(body)


def _files(directory: Path) -> list[Path]:
    """Return a checkpoint's files, `config.json` last: where that one is, the others are."""
    files = [path for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")]
    return sorted(files, key=lambda path: (path.name == "config.json", path.name))


def _parsed(document: bytes, called: str) -> dict[str, str]:
    try:
        links: dict[str, str] = json_as(document, dict[str, str])
    except Malformed:  # whose message may quote a link
        raise CheckpointError(f"{called} does not name links", _FORM) from None
    for name, link in links.items():
        if not _is_safe(link):
            raise CheckpointError(f"{called}: the link for {name} is not an https address", _FORM)
    return links


def _is_address(source: str) -> bool:
    """Whether it is an address, also a mistyped one: as a file's name it would be shown whole."""
    return "://" in source


def _is_safe(url: str) -> bool:
    """Whether nobody on the way can read the address: https, or a server on this machine."""
    try:
        parts = urlsplit(url)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_this_machine(host)))
