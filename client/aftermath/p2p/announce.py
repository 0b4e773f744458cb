"""Announcements: small messages to all members, best effort, repeated after a reconnect.

Each connection has one unidirectional stream for them. Each peer has a bounded queue, so a slow
peer loses its oldest messages and delays nobody else. Receivers drop repeats.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import NoReturn
from weakref import WeakSet

import iroh
from blake3 import blake3

from aftermath.base.concurrency import first_of
from aftermath.p2p.limits import (
    ALL_ANNOUNCEMENT_BURST,
    ALL_ANNOUNCEMENT_RATE,
    REMEMBERED_PEERS,
    SharedLimit,
)
from aftermath.p2p.line_faults import GOOD_LINE, MemberLine
from aftermath.p2p.peer_connection import Link
from aftermath.p2p.peer_stats import PeerMeasurements
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, Announcement
from aftermath.p2p.wire import Code, ProtocolViolation, check_announcement, frame, read_frame

REPLAY = 64
OUTBOX = 256
INBOX = 4096
REMEMBERED = 256
"""Announcements of a sender: of an honest one the last REPLAY suffice."""
WRITE_S = 30.0


class PeerOutbox:
    """The bounded queue of messages to one peer. A full queue drops the oldest."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._queue: deque[bytes] = deque(messages, maxlen=OUTBOX)
        self._filled = asyncio.Event()
        if self._queue:
            self._filled.set()

    def put(self, message: bytes) -> bool:
        """Queue a message. Return False if an older one was dropped."""
        full = len(self._queue) == OUTBOX
        self._queue.append(message)
        self._filled.set()
        return not full

    async def take(self) -> bytes:
        """Return all queued messages, framed. Wait for the first one."""
        await self._filled.wait()
        self._filled.clear()
        batch = b"".join(frame(message) for message in self._queue)
        self._queue.clear()
        return batch


class AnnouncementSubscription(AsyncIterator[Announcement]):
    """One reader of announcements with a bounded queue. It ends when the transport closes."""

    def __init__(self, pending: Iterable[Announcement], pace: PeerMeasurements) -> None:
        self._queue: deque[Announcement] = deque(pending, maxlen=INBOX)
        self._stirred = asyncio.Event()
        self._pace = pace
        self._closed = False

    def put(self, announcement: Announcement) -> None:
        """Queue an announcement. If the reader is too slow, drop and count the oldest."""
        if len(self._queue) == INBOX:
            self._pace.events["dropped"] += 1
        self._queue.append(announcement)
        self._stirred.set()

    def end(self) -> None:
        """Let the reader finish what is queued and stop."""
        self._closed = True
        self._stirred.set()

    async def __anext__(self) -> Announcement:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._stirred.clear()
            await self._stirred.wait()
        return self._queue.popleft()


class Announcer:
    """Sends and receives announcements over all links of an endpoint.

    A second announcement stream breaks the protocol. A flooding peer is read no faster than its
    quota; if it continues, it breaks the protocol too. The last REPLAY messages are sent again on
    every new connection.
    """

    def __init__(self, pace: PeerMeasurements, line: MemberLine = GOOD_LINE) -> None:
        self._pace = pace
        self._line = line
        self._log: deque[bytes] = deque(maxlen=REPLAY)
        self._outboxes: dict[Link, PeerOutbox] = {}
        self._digests: dict[bytes, dict[bytes, None]] = {}
        self._subscriptions: WeakSet[AnnouncementSubscription] = WeakSet()
        self._early: deque[Announcement] = deque(maxlen=INBOX)
        self._subscribed = False
        self._all = SharedLimit(pace.clock, ALL_ANNOUNCEMENT_RATE, ALL_ANNOUNCEMENT_BURST)

    def announce(self, data: bytes) -> None:
        """Queue `data` for every connected peer and remember it for those that connect later."""
        check_announcement(data)
        self._log.append(data)
        for outbox in self._outboxes.values():
            if not outbox.put(data):
                self._pace.events["dropped"] += 1

    def subscribe(self) -> AnnouncementSubscription:
        """Return a new reader. The first one also gets earlier announcements."""
        subscription = AnnouncementSubscription(self._early, self._pace)
        self._early.clear()
        self._subscribed = True
        self._subscriptions.add(subscription)
        return subscription

    async def write(self, link: Link) -> None:
        """Send the replay and then queued messages until the link closes or the peer stops
        reading.
        """
        outbox = self._outboxes[link] = PeerOutbox(self._log)
        try:
            async with asyncio.timeout(WRITE_S):
                stream = await link.connection.open_uni()
            while True:
                batch = await outbox.take()
                await self._line.send(len(batch))
                async with asyncio.timeout(WRITE_S):
                    await stream.write_all(batch)
                self._pace.sent["announce"] += len(batch)
        except TimeoutError:
            link.close(Code.STALLED, "announcements were not read")
        finally:
            del self._outboxes[link]

    async def read(self, link: Link) -> None:
        """Receive announcements from the link's one stream of them."""
        stream = await link.connection.accept_uni()
        await first_of(self._read_all(link, stream), link.connection.accept_uni())
        raise ProtocolViolation("it opened a second stream of announcements")

    async def _read_all(self, link: Link, stream: iroh.RecvStream) -> NoReturn:
        while True:
            await self._receive(link, await read_frame(stream, MAX_ANNOUNCEMENT))

    async def _receive(self, link: Link, data: bytes) -> None:
        """Count, throttle, de-duplicate and deliver one announcement."""
        sender = link.peer
        link.bytes_read += len(data) + 4
        self._pace.received["announce"] += len(data) + 4
        in_time = await self._pace.throttle(link.quota.announcements, self._all)
        # A reconnecting member repeats its last REPLAY announcements. More repeats count as a
        # flood.
        is_new = self._is_new(sender, data)
        if not is_new:
            link.repeats += 1
            self._pace.events["duplicates"] += 1
        replayed = not is_new and link.repeats <= REPLAY
        if not in_time and not replayed and not link.quota.excess.try_take():
            raise ProtocolViolation("announcing too often for too long")
        if is_new:
            self._deliver(Announcement(sender, data))

    def _is_new(self, sender: bytes, data: bytes) -> bool:
        """Remember an announcement. Return False for a repeat of this sender's."""
        digests = self._digests[sender] = self._digests.pop(sender, {})
        if len(self._digests) > REMEMBERED_PEERS:
            del self._digests[next(iter(self._digests))]
        digest = blake3(data).digest()
        if digest in digests:
            return False
        digests[digest] = None
        if len(digests) > REMEMBERED:
            del digests[next(iter(digests))]
        return True

    def _deliver(self, announcement: Announcement) -> None:
        if not self._subscribed:
            if len(self._early) == INBOX:
                self._pace.events["dropped"] += 1
            self._early.append(announcement)
        for subscription in self._subscriptions:
            subscription.put(announcement)

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self._subscriptions:
            subscription.end()
