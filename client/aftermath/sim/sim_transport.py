"""The peer-to-peer transport on virtual time, with latency, cuts, crashes and forged blobs."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from blake3 import blake3

from aftermath.p2p.limits import Bans, LogLimits
from aftermath.p2p.transport import (
    KINDS,
    MAX_ANNOUNCEMENT,
    Announcement,
    BlobRejected,
    BlobUnavailable,
    Handler,
    Kind,
    PeerUnreachable,
    ReadRange,
    RequestFailed,
    RequestRefused,
    TransportStats,
    short,
)

_REPLAYED = 64
_REFUSED_AFTER = 1.0  # seconds until a silent peer counts as unreachable
_log = logging.getLogger(__name__)


class SimNetwork:
    """All nodes, and the latency between two of them."""

    def __init__(self, latency: float = 0.02) -> None:
        self.latency = latency
        self.loses: Callable[[bytes, bytes], bool] = lambda sender, receiver: False
        """Called for every announcement. Returns whether the network loses it."""
        self._cut: set[frozenset[bytes]] = set()
        self._nodes: dict[bytes, SimTransport] = {}

    def open(self, node_id: bytes) -> SimTransport:
        """Return a new node. It replaces a crashed one of the same id."""
        node = self._nodes[node_id] = SimTransport(self, node_id)
        return node

    def crash(self, node_id: bytes) -> None:
        """Remove a node without notice."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            node.down()

    def cut(self, one: bytes, other: bytes) -> None:
        """Separate two nodes."""
        self._cut.add(frozenset((one, other)))

    def heal(self) -> None:
        """Undo all cuts."""
        parted, self._cut = self._cut, set()
        for pair in sorted(sorted(pair) for pair in parted):
            for one, other in (pair, pair[::-1]):
                if (node := self._nodes.get(one)) is not None and node.admits(other):
                    node.replay(other)

    def link(self, one: SimTransport, other: bytes) -> SimTransport | None:
        """Return the other node if both are up and each has the other in its member list."""
        node = self._nodes.get(other)
        if (
            node is None
            or self._nodes.get(one.node_id) is not one
            or frozenset((one.node_id, other)) in self._cut
        ):
            return None
        return node if node.admits(one.node_id) and one.admits(other) else None

    def reachable(self, node: SimTransport) -> frozenset[bytes]:
        return frozenset(
            other for other in self._nodes if other != node.node_id and self.link(node, other)
        )


class SimTransport:
    """One member's end of the simulated network."""

    def __init__(self, network: SimNetwork, node_id: bytes) -> None:
        self.node_id = node_id
        self._network = network
        self._members: frozenset[bytes] = frozenset()
        self._bars = Bans(lambda: asyncio.get_running_loop().time())
        self.barred: list[tuple[bytes, str]] = []
        """The peers that this node banned, with reasons, in order."""
        self._blobs: dict[bytes, bytes] = {}
        self._handlers: dict[str, Handler] = {}
        self._log_limits = LogLimits(_log)
        self._inbox: asyncio.Queue[Announcement | None] = asyncio.Queue()
        self._sent_last: deque[bytes] = deque(maxlen=_REPLAYED)
        self._heard: set[tuple[bytes, bytes]] = set()
        self._sent: dict[Kind, int] = dict.fromkeys(KINDS, 0)
        self._received: dict[Kind, int] = dict.fromkeys(KINDS, 0)

    def admits(self, node_id: bytes) -> bool:
        return node_id in self._members and not (self.barred and self._bars.seconds_left(node_id))

    def bar(self, peer: bytes, why: str) -> None:
        """Ban a peer. After the ban it reconnects and gets the last announcements, as with the real
        transport.
        """
        seconds = self._bars.offended(peer)
        self.barred.append((peer, why))
        asyncio.get_running_loop().call_later(seconds, self._let_in, peer)

    def _let_in(self, peer: bytes) -> None:
        if (other := self._network.link(self, peer)) is not None:
            self.replay(peer)
            other.replay(self.node_id)

    def down(self) -> None:
        self._inbox.put_nowait(None)

    # --- announcements ---

    def set_members(self, node_ids: Iterable[bytes]) -> None:
        reachable_before = self._network.reachable(self)
        self._members = frozenset(node_ids) - {self.node_id}
        for peer in sorted(self._network.reachable(self) - reachable_before):
            self.replay(peer)
            other = self._network.link(self, peer)
            if other is not None:
                other.replay(self.node_id)

    def replay(self, peer: bytes) -> None:
        """Send our last announcements again, as after every reconnection."""
        for data in self._sent_last:
            self.tell(peer, data)

    async def announce(self, data: bytes) -> None:
        if len(data) > MAX_ANNOUNCEMENT:
            raise ValueError(f"an announcement has at most {MAX_ANNOUNCEMENT} bytes")
        self._sent_last.append(data)
        for peer in sorted(self._network.reachable(self)):
            self.tell(peer, data)

    def tell(self, peer: bytes, data: bytes) -> None:
        """Send an announcement to one peer only."""
        self._sent["announce"] += len(data)
        loop = asyncio.get_running_loop()
        if not self._network.loses(self.node_id, peer):
            loop.call_later(self._network.latency, self._arrive, peer, data)

    def _arrive(self, peer: bytes, data: bytes) -> None:
        other = self._network.link(self, peer)
        if other is None or (self.node_id, data) in other._heard:
            return
        other._heard.add((self.node_id, data))
        other._received["announce"] += len(data)
        other._inbox.put_nowait(Announcement(self.node_id, data))

    async def announcements(self) -> AsyncIterator[Announcement]:
        while (heard := await self._inbox.get()) is not None:
            yield heard

    # --- blobs ---

    def publish(self, data: bytes) -> bytes:
        digest = blake3(data).digest()
        self._blobs[digest] = bytes(data)
        return digest

    def forge(self, digest: bytes, data: bytes) -> None:
        """Serve bytes that do not match the digest."""
        self._blobs[digest] = data

    def publish_source(self, digest: bytes, size: int, read: ReadRange) -> None:
        self._blobs[digest] = read(0, size)

    def retract(self, digest: bytes) -> None:
        self._blobs.pop(digest, None)

    async def fetch(
        self,
        digest: bytes,
        size: int,
        holders: Sequence[bytes],
        deadline_s: float,
        *,
        keep: bool = False,
        author: bytes | None = None,
    ) -> bytes:
        liars = set()
        for holder in holders:
            await asyncio.sleep(2 * self._network.latency)
            other = self._network.link(self, holder)
            data = other._blobs.get(digest) if other is not None else None
            if other is None or data is None:
                continue
            if len(data) != size or blake3(data).digest() != digest:
                liars.add(holder)
                continue
            other._sent["blob"] += size
            self._received["blob"] += size
            if keep:
                self.publish(data)
            return data
        if liars and liars >= set(holders):
            raise BlobRejected(f"every holder sent something else than blob {short(digest)}")
        await asyncio.sleep(min(deadline_s, _REFUSED_AFTER))
        raise BlobUnavailable(f"no holder delivered blob {short(digest)}")

    # --- requests ---

    async def request(
        self, peer: bytes, topic: str, body: bytes, max_reply: int, deadline_s: float
    ) -> bytes:
        await asyncio.sleep(self._network.latency)
        other = self._network.link(self, peer)
        if other is None:
            await asyncio.sleep(min(deadline_s, _REFUSED_AFTER))
            raise PeerUnreachable(f"peer {short(peer)} does not answer")
        handler = other._handlers.get(topic)
        try:
            async with asyncio.timeout(deadline_s):
                reply = await handler(self.node_id, body) if handler is not None else None
        except TimeoutError:
            raise PeerUnreachable(
                f"peer {short(peer)} gave no answer on {topic!r} within {deadline_s:.1f} s"
            ) from None
        except RequestRefused:
            raise RequestRefused(f"peer {short(peer)} refused the request: {topic!r}") from None
        # a handler's failure is reported to the peer, as by the real transport
        except Exception as error:
            other._log_limits.failure(f"answering {topic!r} to", self.node_id, error)
            raise RequestFailed(f"peer {short(peer)} failed to answer: {topic!r}") from None
        if reply is None or len(reply) > max_reply:
            raise RequestFailed(f"peer {short(peer)} gave no usable reply on {topic}")
        self._sent["request"] += len(body)
        self._received["request"] += len(reply)
        await asyncio.sleep(self._network.latency)
        return reply

    def handle(self, topic: str, handler: Handler) -> None:
        self._handlers[topic] = handler

    # --- state ---

    def reachable(self) -> frozenset[bytes]:
        return self._network.reachable(self)

    def stats(self) -> TransportStats:
        return TransportStats(
            sent=dict(self._sent),
            received=dict(self._received),
            connects=len(self.reachable()),
            refused=0,
            disconnects=0,
            failed_handshakes=0,
            dropped=0,
            duplicates=0,
            throttled=0,
            violations=0,
            retries=0,
            rejected=0,
            peers={},
        )

    async def close(self) -> None:
        self.down()
