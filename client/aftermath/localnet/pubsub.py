"""One websocket connection: its calls, its bounded queue, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from aftermath.base.bounded import Malformed, json_value
from aftermath.base.concurrency import cancel
from aftermath.localnet.errors import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    JsonRpcError,
)
from aftermath.localnet.json_rpc import check_call, failure
from aftermath.localnet.subscriptions import Outbox, Subscriptions

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 64 * 1024
# A connection beyond these limits is aborted. A subscriber that silently misses notifications is
# worse off than one that reconnects. The server does not wait until the client has read its queue.
MAX_BACKLOG = 10_000
MAX_BACKLOG_BYTES = 32 * 1024 * 1024
MAX_SUBSCRIPTIONS = 1_000
PING_SECONDS = 30.0
CLOSE_SECONDS = 3.0
"""The longest wait for the close frame of a client."""


class Calls:
    """The calls of one connection, over any transport."""

    def __init__(self, subscriptions: Subscriptions, outbox: Outbox) -> None:
        self._subscriptions = subscriptions
        self._outbox = outbox
        self._methods = subscriptions.methods()

    def answer(self, data: str | bytes) -> None:
        """Handle one message. Replies and notifications go to the outbox."""
        try:
            request = json_value(data)
        except Malformed:
            self._reply(failure(None, JsonRpcError(PARSE_ERROR, "Parse error")))
            return
        if isinstance(request, list) and request:
            for one in request:
                self._call(one)
        else:
            self._call(request)

    def _call(self, request: Any) -> None:
        call = check_call(request)
        if isinstance(call, JsonRpcError):
            self._reply(failure(None, call))
            return
        name, params, call_id = call
        try:
            result = self._run(name, params)
        except JsonRpcError as error:
            self._reply(failure(call_id, error))
            return
        self._reply({"jsonrpc": "2.0", "result": result, "id": call_id})
        if name == "signatureSubscribe":
            self._subscriptions.catch_up(result)

    def _run(self, name: str, params: Any) -> Any:
        method = self._methods.get(name)
        if method is None:
            raise JsonRpcError(METHOD_NOT_FOUND, "Method not found")
        opens = name.endswith("Subscribe")
        if opens and self._subscriptions.count(self._outbox) >= MAX_SUBSCRIPTIONS:
            raise JsonRpcError(
                INVALID_REQUEST, f"A connection may hold {MAX_SUBSCRIPTIONS} subscriptions"
            )
        return method(params, self._outbox)

    def _reply(self, body: dict[str, Any]) -> None:
        self._outbox.put(msgspec.json.encode(body).decode())


class SubscriberConnection:
    """Serves one client until it leaves or lags. It is the `Outbox` of its subscriptions.

    `ping`: seconds between pings. `most`: bytes in its queue.
    """

    def __init__(
        self, subscriptions: Subscriptions, *, ping: float = PING_SECONDS, most: int | None = None
    ) -> None:
        self._subscriptions = subscriptions
        self._max_bytes = most or MAX_BACKLOG_BYTES
        self._calls = Calls(subscriptions, self)
        self._socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_BYTES, heartbeat=ping, compress=False
        )
        self._queue: asyncio.Queue[str] = asyncio.Queue(MAX_BACKLOG)
        self._queued_bytes = 0
        self._lagging = asyncio.Event()

    def put(self, text: str) -> None:
        self._queued_bytes += len(text)
        if self._queued_bytes > self._max_bytes or self._queue.full():
            self._lagging.set()
            return
        self._queue.put_nowait(text)

    async def serve(self, request: web.BaseRequest) -> web.WebSocketResponse:
        await self._socket.prepare(request)
        tasks = [
            asyncio.create_task(part)
            for part in (self._read(), self._write(), self._lagging.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._subscriptions.drop(self)
            await cancel(tasks)
        await self._end()
        return self._socket

    async def _end(self) -> None:
        if self._lagging.is_set():
            log.warning("a subscriber lagged and was disconnected")
            self._abort()
        elif self._transport is not None and self._transport.get_write_buffer_size():
            self._abort()
        else:
            await self.close(WSCloseCode.OK)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def _transport(self) -> asyncio.Transport | None:
        request = self._socket._req
        return None if request is None else request.transport

    async def _write(self) -> None:
        while True:
            text = await self._queue.get()
            await self._socket.send_str(text)
            self._queued_bytes -= len(text)

    async def _read(self) -> None:
        async for message in self._socket:
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            self._calls.answer(message.data)

    async def close(self, code: int = WSCloseCode.GOING_AWAY) -> None:
        """Send a close frame, then end the connection in any case."""
        message = b"the localnet is stopping" if code == WSCloseCode.GOING_AWAY else b""
        try:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._socket.close(code=code, message=message)
        finally:
            self._abort()
