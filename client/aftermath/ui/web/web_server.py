"""The observer's web server: a page, its files, JSON, and websockets that push changes.

All requests are `GET` and change nothing. The page runs only its own scripts and styles (CSP).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from aftermath.base.concurrency import Pulse, cancel
from aftermath.base.errors import AftermathError, UsageError
from aftermath.ui.web.observatory import Observatory
from aftermath.ui.web.observed_run import ObservedRun
from aftermath.ui.web.snapshot import STATES

log = logging.getLogger(__name__)

MOST_VIEWERS = 256
MOST_OTHERS = 128
"""Maximum viewers, which receive pushes, and maximum other connections."""
_PAGE = Path(__file__).parent / "page"
_KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_LEAST_SECONDS = 0.25
_STALLED_SECONDS = 15.0
_PING_SECONDS = 20.0
"""Minimum seconds between two messages to a viewer, seconds for it to accept one, and seconds
between pings.
"""
_ANSWER_SECONDS = 5.0  # seconds that the first request for a run waits for the chain
# seconds that an idle connection may stay open; each takes a file descriptor
_IDLE_SECONDS = 20.0
_MOST_HEARD = 1024  # bytes of a viewer's message; none is expected
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class ObserveError(AftermathError):
    """The observer cannot be served."""

    code = "observe"


class _Entrance:
    """Accepts connections up to a limit, because each takes a file descriptor. Beyond it, the
    oldest is closed.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._others: dict[web.RequestHandler, None] = {}

    def __call__(self) -> web.RequestHandler:
        if len(self._others) >= MOST_OTHERS:
            oldest = next(iter(self._others))
            del self._others[oldest]
            if oldest.transport is not None:
                oldest.transport.abort()  # `close` would wait for a client that does not read
        connection = self._server()
        self._others[connection] = None
        return connection

    def is_viewer(self, connection: web.RequestHandler) -> None:
        """Stop counting a connection here: it is now counted as a viewer."""
        self._others.pop(connection, None)


class ObserverServer:
    """Serves one observatory.

    Anyone may load the page. Data and sockets answer only this server's page (no CORS, and a
    socket's origin is compared), so that other sites cannot read a private observer. Viewers are
    limited, may send a few bytes, and are closed if they take nothing for some seconds. A slow
    viewer skips outdated changes.
    """

    def __init__(
        self,
        observatory: Observatory,
        *,
        most_viewers: int = MOST_VIEWERS,
        names: Collection[str] = (),
    ) -> None:
        """Serve under the listening address and these host names."""
        self._observatory = observatory
        self._most = most_viewers
        self._names = {"localhost", *(name.lower() for name in names)}
        self._viewers: set[asyncio.Task[object]] = set()
        self._entrance: _Entrance
        self._parts = {
            f"/{path.name}": path.read_bytes() for path in _PAGE.iterdir() if path.suffix in _KINDS
        }
        app = web.Application(client_max_size=_MOST_HEARD, middlewares=[self._check_host])
        app.on_response_prepare.append(_make_safe)
        app.router.add_get("/", self._page)
        app.router.add_get("/run/{run}", self._page)
        for name in self._parts:
            app.router.add_get(name, self._part)
        app.router.add_get("/api/runs", self._list)
        app.router.add_get("/api/runs/{run}", self._run)
        app.router.add_get("/api/runs/{run}/at/{at:[0-9]{1,16}}", self._then)
        app.router.add_get("/live", self._live_list)
        app.router.add_get("/live/{run}", self._live_run)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=_IDLE_SECONDS,
        )

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serve until the block ends, and yield the port. Raises ObserveError if that is
        impossible.
        """
        self._names.add(host.lower())
        await self._runner.setup()
        assert self._runner.server is not None
        self._entrance = _Entrance(self._runner.server)
        try:
            listener = await asyncio.get_running_loop().create_server(self._entrance, host, port)
        except OSError as error:
            await self._runner.cleanup()
            why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
            raise ObserveError(
                f"cannot listen at {host}:{port}: {why}",
                "Choose another --port, or another address with --host",
            ) from None
        try:
            yield int(listener.sockets[0].getsockname()[1])
        finally:
            listener.close()
            await cancel(self._viewers)
            await self._runner.cleanup()

    @web.middleware
    async def _check_host(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject a request for a host name that is not ours.

        Any site can have its own name resolve to this machine (DNS rebinding). A browser then takes
        the observer's answers for that site's. An IP address in the header is safe, because it is
        not a name.
        """
        header = request.headers.get("Host")
        if header is not None:
            name = host_of(header)
            if name not in self._names and not is_address(name):
                raise web.HTTPForbidden(
                    text="the observer does not accept this host name; add it with observe --name NAME\n"
                )
        return await handler(request)

    # --- files and JSON ---

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self._parts["/index.html"], content_type="text/html", charset="utf-8"
        )

    async def _part(self, request: web.Request) -> web.Response:
        kind = _KINDS[Path(request.path).suffix]
        return web.Response(body=self._parts[request.path], content_type=kind, charset="utf-8")

    async def _list(self, request: web.Request) -> web.Response:
        return _json(
            _object(list=await self._observatory.runs(), states=msgspec.json.encode(STATES))
        )

    async def _run(self, request: web.Request) -> web.Response:
        run = self._asked(request)
        if not run.known:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.asked.wait(), _ANSWER_SECONDS)
        status = 200 if run.known else 404 if run.missing else 503
        times = msgspec.json.encode(run.past.times())
        states = msgspec.json.encode(STATES)
        return _json(_object(now=run.now(), curves=run.curves(), past=times, states=states), status)

    async def _then(self, request: web.Request) -> web.Response:
        moment = self._asked(request).past.before(int(request.match_info["at"]))
        if moment is None:
            raise web.HTTPNotFound(text="there is no data for that time\n")
        return _json(moment)

    def _asked(self, request: web.Request) -> ObservedRun:
        try:
            run = self._observatory.run(request.match_info["run"])
        except UsageError as error:
            raise web.HTTPNotFound(text=f"{error.message}\n") from None
        if run is None:
            raise web.HTTPServiceUnavailable(
                text="this observer already follows as many runs as it can\n"
            )
        return run

    # --- live ---

    async def _live_list(self, request: web.Request) -> web.StreamResponse:
        observatory = self._observatory

        async def show(send: Callable[[bytes], Awaitable[None]]) -> None:
            await send(_object(list=await observatory.runs()))

        observatory.list_viewers += 1
        try:
            return await self._live(request, observatory.changed, show)
        finally:
            observatory.list_viewers -= 1

    async def _live_run(self, request: web.Request) -> web.StreamResponse:
        run = self._asked(request)
        drawn: bytes | None = None

        async def show(send: Callable[[bytes], Awaitable[None]]) -> None:
            nonlocal drawn
            await send(_object(now=run.now()))
            if (curves := run.curves()) is not drawn:
                drawn = curves
                await send(_object(curves=curves))

        run.viewers += 1
        try:
            return await self._live(request, run.changed, show)
        finally:
            run.viewers -= 1

    async def _live(
        self,
        request: web.Request,
        changed: Pulse,
        show: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]],
    ) -> web.StreamResponse:
        """Send the state now and after every change, until the viewer leaves."""
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="this socket is for the observer's own page\n")
        if len(self._viewers) >= self._most:
            raise web.HTTPServiceUnavailable(text=f"{self._most} pages are open already\n")
        task = asyncio.current_task()
        assert task is not None
        self._viewers.add(task)
        self._entrance.is_viewer(request.protocol)
        socket = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_MOST_HEARD)

        async def send(message: bytes) -> None:
            async with asyncio.timeout(_STALLED_SECONDS):
                await socket.send_str(message.decode())

        async def push() -> None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                while not socket.closed:
                    again = asyncio.ensure_future(changed.wait())
                    try:
                        await show(send)
                        await asyncio.sleep(_LEAST_SECONDS)
                        await again
                    finally:
                        again.cancel()
            await socket.close()

        pushing: list[asyncio.Task[None]] = []
        try:
            await socket.prepare(request)
            pushing.append(asyncio.create_task(push()))
            # the page never sends anything, so any message means that the viewer leaves
            await socket.receive()
        except ConnectionError:
            pass
        finally:
            await cancel(pushing)
            self._viewers.discard(task)
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(1):
                    await socket.close()
            if request.transport is not None and request.transport.get_write_buffer_size():
                request.transport.abort()
        return socket


def host_of(header: str) -> str:
    """Return the host of a `Host` header, without port and brackets. Empty if the header is not
    valid.
    """
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


async def _make_safe(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_SAFE)


def _json(document: bytes, status: int = 200) -> web.Response:
    return web.Response(
        body=document, status=status, content_type="application/json", charset="utf-8"
    )


def _object(**parts: bytes) -> bytes:
    """Return a JSON object whose values are JSON already."""
    return (
        b"{"
        + b",".join(msgspec.json.encode(name) + b":" + part for name, part in parts.items())
        + b"}"
    )
