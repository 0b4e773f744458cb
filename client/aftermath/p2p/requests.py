"""Requests: small calls to one peer, and the dispatch of calls and blob ranges that peers ask for.

Each call is one bidirectional stream. Sizes precede the bytes, so nothing oversized is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter

import iroh

from aftermath.base.concurrency import cancel
from aftermath.p2p.blobs import BlobStore
from aftermath.p2p.connection_table import Links
from aftermath.p2p.limits import ALL_REQUEST_BURST, ALL_REQUEST_RATE, LogLimits, SharedLimit
from aftermath.p2p.line_faults import GOOD_LINE, MemberLine
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import (
    MAX_REQUEST,
    Handler,
    PeerUnreachable,
    RequestFailed,
    RequestRefused,
    short,
)
from aftermath.p2p.wire import (
    MAX_TOPIC,
    BlobRequest,
    CallRequest,
    Code,
    PieceRequest,
    ProtocolViolation,
    Reply,
    ReplyStatus,
    Request,
    cause,
    frame_of,
    read_message,
    read_request,
)

HEADER_S = 10.0
LONGEST_HANDLER_S = 120.0
ANSWERS = 8 << 20
"""Maximum bytes of unread answers of one peer. A single answer may be larger."""
ALL_ANSWERS = 64 << 20
"""Limit of answer bytes over all peers, besides one answer to each."""

log = logging.getLogger(__name__)

_TROUBLE = {
    ReplyStatus.MISSING: "answers no requests on this topic (it may run another version)",
    ReplyStatus.REFUSED: "refused the request",
    ReplyStatus.FAILED: "failed to answer; its log says why",
    ReplyStatus.TOO_LARGE: "has a reply larger than we accept",
}


class Requests:
    """Our handlers, and calls to others.

    A peer has at most STREAMS_SERVED of its streams served at a time, and no more per second than
    its quota. The rest wait in QUIC, which allows few. Data after a request is not read. A peer
    that does not take its answers gets no further ones while there is no room.
    """

    def __init__(
        self, store: BlobStore, pace: PeerMeasurements, line: MemberLine = GOOD_LINE
    ) -> None:
        self._store = store
        self._line = line
        self._pace = pace
        self._log_limits = LogLimits(log)
        self._handlers: dict[str, Handler] = {}
        self._all = SharedLimit(pace.clock, ALL_REQUEST_RATE, ALL_REQUEST_BURST)
        self._untaken: Counter[bytes] = Counter()

    def handle(self, topic: str, handler: Handler) -> None:
        """Answer `topic` with `handler`."""
        if not topic or len(topic) > MAX_TOPIC:
            raise ValueError(f"a topic has 1 to {MAX_TOPIC} characters, not {len(topic)}")
        self._handlers[topic] = handler

    # --- our side of a call ---

    async def call(
        self, links: Links, peer: bytes, topic: str, body: bytes, max_reply: int, deadline_s: float
    ) -> bytes:
        """Send a request and return the reply; see `Transport.request`."""
        if len(body) > MAX_REQUEST:
            raise ValueError(
                f"a request body has at most {MAX_REQUEST} bytes, not {len(body)}: publish a blob instead"
            )
        loop = asyncio.get_running_loop()
        ends = loop.time() + deadline_s
        link = await links.get(peer, deadline_s)
        try:
            async with asyncio.timeout_at(ends):
                return await self._exchange(link, topic, body, max_reply, ends - loop.time())
        except TimeoutError as error:
            link.give_up(max_reply)
            self._pace.failed(peer)
            raise PeerUnreachable(
                f"peer {short(peer)} gave no answer on {topic!r} within {deadline_s:.1f} s"
            ) from error
        except iroh.IrohError as error:
            self._pace.failed(peer)
            raise PeerUnreachable(
                f"peer {short(peer)} went away during {topic!r}: {cause(error)}"
            ) from error
        except ProtocolViolation as violation:
            self._pace.failed(peer)
            raise RequestFailed(
                f"peer {short(peer)} answered {topic!r} with {violation}"
            ) from violation

    async def _exchange(
        self, link: Link, topic: str, body: bytes, max_reply: int, deadline_s: float
    ) -> bytes:
        """One call over one stream."""
        await self._line.send(len(body))
        stream = await link.connection.open_bi()
        header = frame_of(CallRequest(topic, len(body), max_reply, max(0, int(deadline_s * 1000))))
        await stream.send().write_all(header + body)
        await stream.send().finish()
        self._pace.sent["request"] += len(header) + len(body)
        reply = await read_message(stream.recv(), Reply)
        if reply.status != ReplyStatus.OK:
            kind = RequestRefused if reply.status == ReplyStatus.REFUSED else RequestFailed
            raise kind(f"peer {short(link.peer)} {_TROUBLE[reply.status]}: {topic!r}")
        if reply.size > max_reply:
            await stream.recv().stop(0)
            raise RequestFailed(
                f"peer {short(link.peer)} would send {reply.size} bytes on {topic!r}, over {max_reply}"
            )
        data = bytes(await stream.recv().read_exact(reply.size)) if reply.size else b""
        self._pace.received["request"] += len(data)
        link.bytes_read += len(data)
        return data

    # --- the other side ---

    async def serve(self, link: Link) -> None:
        """Answer what the peer asks on a link, at most STREAMS_SERVED on all its links."""
        tasks: set[asyncio.Task[None]] = set()
        serving = (link.main or link).serving
        try:
            while True:
                stream = await link.connection.accept_bi()
                await self._pace.throttle(link.quota.requests, self._all)
                await serving.acquire()
                task = asyncio.create_task(self._answer(link, stream))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: serving.release())
        finally:
            await cancel(tasks)

    async def _answer(self, link: Link, stream: iroh.BiStream) -> None:
        """Serve one stream. A peer that leaves or stalls ends its stream; a violation ends the
        link.
        """
        try:
            async with asyncio.timeout(HEADER_S):
                request = await read_request(stream.recv())
                body = await _body_of(request, stream.recv())
                with contextlib.suppress(
                    iroh.IrohError
                ):  # the peer has finished the stream, so nothing follows
                    await stream.recv().stop(int(Code.DONE))
            link.count_request(len(body))
            self._pace.received["request"] += len(body)
            if isinstance(request, BlobRequest):
                await self._store.serve(request, stream.send(), self._pace)
            elif isinstance(request, PieceRequest):
                await self._store.serve_piece(request, stream.send(), self._pace)
            else:
                await self._answer_call(link.peer, request, body, stream.send())
        except ProtocolViolation as violation:
            link.violated(violation)
        except (iroh.IrohError, TimeoutError) as error:
            log.debug("a stream of peer %s ended: %s", short(link.peer), cause(error))
        except Exception as error:
            self._log_limits.failure("answering", link.peer, error)

    async def _answer_call(
        self, peer: bytes, request: CallRequest, body: bytes, stream: iroh.SendStream
    ) -> None:
        """Run the handler, send its reply."""
        status, reply = await self._handled(peer, request, body)
        await self._line.send(len(reply))
        if reply and not self._room(peer, len(reply)):
            status = ReplyStatus.REFUSED
            reply = b""
        reply, size = frame_of(Reply(status, len(reply))) + reply, len(reply)
        self._untaken[peer] += size
        try:
            async with asyncio.timeout(HEADER_S + self._pace.patience(peer)):
                await stream.write_all(reply)
                await stream.finish()
        finally:
            self._untaken[peer] -= size
            if not self._untaken[peer]:
                del self._untaken[peer]
        self._pace.sent["request"] += len(reply)

    def _room(self, peer: bytes, size: int) -> bool:
        """Return whether an answer of `size` bytes may be queued for this peer."""
        pending = self._untaken[peer] + size
        return pending == size or (
            pending <= ANSWERS and self._untaken.total() + size <= ALL_ANSWERS
        )

    async def _handled(
        self, peer: bytes, request: CallRequest, body: bytes
    ) -> tuple[ReplyStatus, bytes]:
        """Run the topic's handler within the caller's deadline."""
        handler = self._handlers.get(request.topic)
        if handler is None:
            return ReplyStatus.MISSING, b""
        try:
            async with asyncio.timeout(min(request.deadline_ms / 1000, LONGEST_HANDLER_S)):
                reply = await handler(peer, body)
        except RequestRefused:
            return ReplyStatus.REFUSED, b""
        except Exception as error:
            self._log_limits.failure(f"answering {request.topic!r} to", peer, error)
            return ReplyStatus.FAILED, b""
        return (
            (ReplyStatus.OK, reply)
            if len(reply) <= request.max_reply
            else (ReplyStatus.TOO_LARGE, b"")
        )


async def _body_of(request: Request, stream: iroh.RecvStream) -> bytes:
    return (
        bytes(await stream.read_exact(request.size))
        if isinstance(request, CallRequest) and request.size
        else b""
    )
