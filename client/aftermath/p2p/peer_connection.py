"""One peer: its slot in the table of connections, its connection's greeting, and its liveness.

A pair of peers keeps one connection. If both sides dialled, both keep the one dialled by the
smaller id. A newer one by the same side, or by a restarted peer, replaces the older one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn

import iroh
from blake3 import blake3

from aftermath.base.concurrency import cancel
from aftermath.base.rate_limit import doubled
from aftermath.p2p.limits import LogLimits, Quota
from aftermath.p2p.transport import PeerUnreachable, escaped, short
from aftermath.p2p.wire import Code, Hello, ProtocolViolation, cause, frame_of, read_message

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
SHORTEST_PAUSE_S = 0.1
"""Pauses before a dial."""
SILENT_PROBES = 4
STREAMS_OPEN = 32
"""Maximum open streams of one peer, waiting or being served.

QUIC allows 100 until `Link.limit` is called.
"""
LANE_STREAMS_OPEN = 8
"""Maximum open streams on each of a peer's lanes, waiting or being served."""
STREAMS_SERVED = 16
"""Maximum streams of one peer that are served at a time, over all its connections."""
MOST_UNREAD = 32 << 20
"""Unread bytes of one peer that QUIC may hold for us. Our own delays never cause more."""
MOST_UNREAD_OF_ALL = 256 << 20
"""Limit of unread bytes over all peers. Beyond it, the peer that sends most is closed."""
MOST_BEFORE_GREETING = 64 << 10
"""Maximum bytes of a connection before its greeting, which takes a few thousand with path probes.
"""
MOST_BEFORE_ANSWER = 1 << 20
"""Limit before a dialled peer's answer is read. It announces and asks right after answering."""
GREETING_POLL_S = 0.1
_AROUND_REQUEST = 256
"""Bytes of QUIC and of our framing around a request, without its body."""
_PAYLOAD = 0.95
"""Least fraction of data in QUIC's datagrams during a large transfer."""
_ACKNOWLEDGED = 0.05
"""Most bytes of acknowledgements from a peer, as a fraction of what we send."""
_MOST_GIVEN_UP = 8 << 20
"""Maximum requested bytes that may still arrive after we gave up on them."""
_CHATTER = 512
"""Bytes per call of `is_within_limit` that are QUIC's own (keep-alives, path probes) or were sent
twice.
"""


@dataclass(eq=False)
class Link:
    """A greeted connection. `dialer` is the id of the side that opened it.

    A lane is a further connection to the same process, for requests only. It has a `main` link.
    Closing the main link closes its lanes, and they share its limits.
    """

    peer: bytes
    connection: iroh.Connection
    dialer: bytes
    instance: bytes
    opened_at: float
    quota: Quota
    main: Link | None = None
    lanes: list[Link] = field(default_factory=list)
    lanes_due_at: float = float("-inf")
    """When missing lanes may be dialled again."""
    transfers: int = 0
    """Number of our transfers on this lane. 0 on a main link."""
    serving: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS_SERVED))
    """Limits the streams that are served at a time. Lanes use that of their main link."""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    end_reason: str = ""
    """Why it ended, as the first failing service saw it."""
    retired: bool = False
    """Whether this side has replaced it with a newer one."""
    broke_rules: str = ""
    """How the peer broke the protocol; empty if it did not."""
    datagrams: int = -1
    silent: int = 0
    bytes_read: int = 0
    """Bytes that we read from its streams."""
    repeats: int = 0
    """Announcements on it that this peer had sent before."""
    given_up: int = 0
    """Bytes that we requested and gave up on, and that may still arrive. Lanes use that of their
    main link.
    """
    unread: float = 0.0
    counted: tuple[int, int, int] = (0, 0, 0)
    """Bytes received, sent and read (`bytes_read`) when `unread` was last computed."""

    def limit(self) -> None:
        """Limit the peer's open streams in QUIC, before any task exists for them."""
        is_lane = self.main is not None
        self.connection.set_max_concurrent_bi_streams(
            LANE_STREAMS_OPEN if is_lane else STREAMS_OPEN
        )
        self.connection.set_max_concurrent_uni_streams(0 if is_lane else 1)

    def close_without_room(self, most: int) -> bool:
        """Close this lane if its main link cannot take it. Return whether it was closed.

        The main link must be open, be of the same process, and have fewer than `most` lanes.
        """
        main = self.main
        if (
            main is not None
            and not main.closed.is_set()
            and main.instance == self.instance
            and len(main.lanes) < most
        ):
            return False
        self.close(Code.DUPLICATE, "no room for a lane")
        return True

    def is_within_limit(self) -> bool:
        """Return False once the peer has sent far more than we read. Call it at a steady rate."""
        stats = self.connection.stats()
        now = stats.udp_rx_bytes, stats.udp_tx_bytes, self.bytes_read
        received, sent, bytes_read = (a - b for a, b in zip(now, self.counted, strict=True))
        self.counted = now
        more = _PAYLOAD * received - _ACKNOWLEDGED * sent - bytes_read - _CHATTER
        owner = self.main or self
        excused = min(owner.given_up, max(0, math.ceil(more)))
        owner.given_up -= excused
        self.unread = max(0.0, self.unread + more - excused)
        return self.unread_of_peer() <= MOST_UNREAD

    def unread_of_peer(self) -> float:
        """Return the unread bytes of this link and its lanes."""
        return self.unread + sum(lane.unread for lane in self.lanes)

    def count_request(self, size: int) -> None:
        """Record that a request with a body of `size` bytes was read."""
        self.bytes_read += size + _AROUND_REQUEST

    def give_up(self, size: int) -> None:
        """Record that `size` requested bytes will not be read, and may be on their way."""
        owner = self.main or self
        owner.given_up = min(_MOST_GIVEN_UP, owner.given_up + size)

    def supersedes(self, current: Link) -> bool:
        """Return whether this new link should replace `current`, the one in use."""
        if self.instance != current.instance or self.dialer == current.dialer:
            return True
        return self.dialer < current.dialer

    def close(self, code: Code, reason: str) -> None:
        """Close the connection. Everything that waits on it fails at once."""
        close_connection(self.connection, code, reason)

    def violated(self, violation: ProtocolViolation) -> None:
        """Close the connection, or a lane's main link, because the peer sent what no correct peer
        sends.
        """
        if self.main is not None:
            self.main.violated(violation)
            return
        self.broke_rules = self.broke_rules or str(violation)
        self.close(Code.VIOLATION, "protocol violation")

    def pulse(self) -> bool:
        """Return False once nothing was heard for SILENT_PROBES calls, and probe the peer.

        The peer's QUIC stack acknowledges probes even while its Python trains, so silence means
        that the process or the path is gone.
        """
        datagrams = self.connection.stats().udp_rx_datagrams
        self.silent = self.silent + 1 if datagrams == self.datagrams else 0
        self.datagrams = datagrams
        if self.silent >= SILENT_PROBES:
            return False
        try:
            self.connection.send_datagram(b"\0")
        except iroh.IrohError:
            log.debug(
                "no probe to %s: datagrams are off or the connection is closing", short(self.peer)
            )
        return True

    def rtt(self) -> float | None:
        """Return QUIC's round trip in seconds, or None before a path is selected."""
        milliseconds = self.connection.rtt()
        return None if milliseconds is None else milliseconds / 1000


def close_reason(connection: iroh.Connection) -> str | None:
    """Return why a connection closed, or None while it is open. The peer may have chosen the
    text.
    """
    reason = connection.close_reason()
    return None if reason is None else escaped(reason)


def close_connection(connection: iroh.Connection, code: Code, reason: str) -> None:
    """Close a connection, telling the peer why; closing twice is harmless."""
    connection.close(int(code), reason.encode())


async def greet(connection: iroh.Connection, instance: bytes) -> bytes:
    """Greet as the dialling side. Return the peer's instance. Raises PeerUnreachable."""
    try:
        stream = await connection.open_bi()
        await stream.send().write_all(frame_of(Hello(instance)))
        await stream.send().finish()
        return (await read_message(stream.recv(), Hello)).instance
    except iroh.IrohError as error:
        raise PeerUnreachable(close_reason(connection) or cause(error)) from error


async def hear_greeting(connection: iroh.Connection) -> tuple[bytes, iroh.SendStream]:
    """Greet as the accepting side. Return the peer's instance and the stream to answer on."""
    stream = await connection.accept_bi()
    return (await read_message(stream.recv(), Hello)).instance, stream.send()


async def only_a_greeting(connection: iroh.Connection) -> NoReturn:
    """Raise ProtocolViolation if a peer sends more than a greeting before it has greeted."""
    await _no_more_than(connection, MOST_BEFORE_GREETING)


async def only_an_answer(connection: iroh.Connection) -> NoReturn:
    """Raise ProtocolViolation if a dialled peer sends far more than its greeting."""
    await _no_more_than(connection, MOST_BEFORE_ANSWER)


async def _no_more_than(connection: iroh.Connection, most: int) -> NoReturn:
    while True:
        await asyncio.sleep(GREETING_POLL_S)
        received = connection.stats().udp_rx_bytes
        if received > most:
            raise ProtocolViolation(f"{received} bytes before it has greeted")


async def answer_greeting(stream: iroh.SendStream, instance: bytes) -> None:
    """Accept the dialling side's greeting."""
    await stream.write_all(frame_of(Hello(instance)))
    await stream.finish()


async def run_link(
    link: Link, services: list[Coroutine[Any, Any, None]], complaints: LogLimits
) -> None:
    """Run a link's services until the connection closes. A protocol violation closes it."""
    link.limit()
    tasks = [asyncio.create_task(_guarded(link, service, complaints)) for service in services]
    try:
        await link.connection.closed()
    except iroh.IrohError as error:
        link.end_reason = link.end_reason or cause(error)
        log.debug("link to %s: %s", short(link.peer), cause(error))
    finally:
        await cancel(tasks)


async def _guarded(link: Link, service: Coroutine[Any, Any, None], complaints: LogLimits) -> None:
    """Run one service of a link. An error ends the link and not the process."""
    try:
        await service
    except ProtocolViolation as violation:
        link.violated(violation)
    except (iroh.IrohError, TimeoutError) as error:
        link.end_reason = link.end_reason or cause(error)
        log.debug("link to %s: %s", short(link.peer), cause(error))
        link.close(Code.STALLED, "stream failed")
    except Exception as error:
        complaints.failure("serving", link.peer, error)
        link.close(Code.DONE, "internal error")


@dataclass(eq=False)
class Peer:
    """State of one peer.

    `quota`: rate limits over all its connections. `greeting`: a connection being greeted. `stir`:
    set by a caller that needs the peer now. `trouble`: why it is not connected.
    """

    quota: Quota
    link: Link | None = None
    greeting: iroh.Connection | None = None
    up: asyncio.Event = field(default_factory=asyncio.Event)
    stir: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = "it has not answered a dial yet"
    keeper: asyncio.Task[None] | None = None

    async def pause(self, delay_s: float) -> None:
        """Wait before a dial: `delay_s`, or SHORTEST_PAUSE_S if a caller needs the peer now."""
        await asyncio.sleep(min(SHORTEST_PAUSE_S, delay_s))
        if self.link is None and not self.stir.is_set():
            try:
                async with asyncio.timeout(max(0.0, delay_s - SHORTEST_PAUSE_S)):
                    await self.stir.wait()
            except TimeoutError:
                pass
        self.stir.clear()


def backoff(me: bytes, peer: bytes, attempt: int) -> float:
    """Return the seconds before dial number `attempt`: doubling, times 0.5 to 1.5.

    The jitter is a hash of pair and attempt. So a run that comes back does not dial in step, and
    tests are repeatable.
    """
    digest = blake3(me + peer + attempt.to_bytes(8, "big")).digest(4)
    jitter = 0.5 + int.from_bytes(digest, "big") / 2**32
    return doubled(attempt, FIRST_PAUSE_S, LONGEST_PAUSE_S) * jitter
