"""A web server on this machine whose faults a test chooses."""

from __future__ import annotations

import re
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Web(ThreadingHTTPServer):
    """Serves `files` in parts. `faults` are used up one request at a time, from the first.

    `429 after 3` is a status code with Retry-After.
    """

    daemon_threads = True

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        super().__init__((host, port), _Handler)
        self.host = host
        self.files: dict[str, bytes] = {}
        self.etag = '"1"'
        self.faults: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.rate: float = 0.0
        """Bytes per second, all requests together; 0: as fast as can be."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else each answer takes 40 ms more
    protocol_version = "HTTP/1.1"
    server: Web

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        web = self.server
        byte_range = self.headers.get("Range", "")
        web.requests.append((self.path, byte_range))
        fault = web.faults.pop(0) if web.faults else ""
        if fault[:3].isdecimal():
            code, _, seconds = fault.partition(" after ")
            self._answer(int(code), b"no", **({"Retry-After": seconds} if seconds else {}))
            return
        if fault.startswith("to "):
            self._answer(302, b"", Location=fault[3:])
            return
        if fault == "heavy":
            self._heavy()
            return
        if fault in ("drip", "hints"):
            self._never(b"x" if fault == "drip" else b"HTTP/1.1 103 Early Hints\r\n\r\n")
            return
        data = web.files.get(unquote(urlsplit(self.path).path), web.files.get(self.path))
        if data is None:
            self._answer(404, b"nothing here")
            return
        if not (match := re.fullmatch(r"bytes=(\d+)-(\d+)", byte_range)) or fault == "whole":
            self._answer(200, data)
            return
        start = int(match[1])
        end = min(int(match[2]) + 1, len(data))
        if start >= len(data):
            self._answer(416, b"")
            return
        content_range = f"bytes {start}-{end - 1}/{len(data)}"
        self._answer(206, data[start:end], fault, ETag=web.etag, **{"Content-Range": content_range})

    def _heavy(self) -> None:
        """A redirect to the same place, whose body is 256 MiB in 256 KiB."""
        packing = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        body = b"".join([*(packing.compress(bytes(1 << 20)) for _ in range(256)), packing.flush()])
        self._answer(
            302, body, Location=self.path, **{"Content-Encoding": "gzip", "Set-Cookie": "a=b"}
        )

    def _never(self, bit: bytes) -> None:
        """Send the beginning of an answer that never ends while the client listens."""
        self.close_connection = True
        if bit == b"x":
            self.wfile.write(b"HTTP/1.1 206 Partial Content\r\nx: ")
        with suppress(OSError):
            while True:
                self.wfile.write(bit)
                time.sleep(0.05)

    def _answer(self, code: int, data: bytes, fault: str = "", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        stated = len(data) + (7 if fault == "long" else 0)
        self.send_header("Content-Length", str(stated))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        if fault == "slow":
            time.sleep(1.0)
        if self.server.rate:
            with self.server.lock:
                time.sleep(len(data) / self.server.rate)
        self.wfile.write(data + (bytes(7) if fault == "long" else b""))


@contextmanager
def serving(port: int = 0, host: str = "127.0.0.1") -> Iterator[Web]:
    """A server, until the block ends."""
    web = Web(port, host)
    thread = threading.Thread(target=web.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield web
    finally:
        web.shutdown()
        web.server_close()
        thread.join()
