"""The interface of this package: what a member may ask of a transport, its errors and its counters.

Peers are named by their 32-byte p2p id, an ed25519 public key that the connection proves.
`aftermath.p2p.iroh` implements it over QUIC, and the simulator over virtual time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from aftermath.base.errors import AftermathError
from aftermath.rules.announcements import MAX_ANNOUNCEMENT_BYTES

MAX_ANNOUNCEMENT = MAX_ANNOUNCEMENT_BYTES
"""Largest announcement in bytes, as the rules of a run define it."""

MAX_REQUEST = 1 << 12
"""Largest body of a request in bytes; larger things are blobs."""

Kind = Literal["announce", "blob", "request"]
KINDS: tuple[Kind, ...] = ("announce", "blob", "request")

Handler = Callable[[bytes, bytes], Awaitable[bytes]]
"""Called as `handler(peer, body)`. Its result is the reply."""

ReadRange = Callable[[int, int], bytes]
"""Called as `read(offset, length)`, possibly on another thread; returns exactly `length` bytes."""


class TransportError(AftermathError):
    """Raised if the transport failed. The message names the peer and the cause."""

    code = "peers"


class PeerUnreachable(TransportError):
    """The peer cannot be connected to, or stopped answering."""


class RequestFailed(PeerUnreachable):
    """The peer was reached but gave no usable reply: no such topic, handler failed, or reply too
    large.
    """


class RequestRefused(RequestFailed):
    """The peer has no answer now. A handler raises it; the caller does not learn the reason."""


class BlobUnavailable(TransportError):
    """No holder delivered the blob in time."""


class BlobRejected(TransportError):
    """Every holder that answered sent a false size or hash of the blob."""


class BindFailed(TransportError):
    """The endpoint could not listen, for instance because the port is occupied."""

    code = "bind"


class DiscoveryFailed(TransportError):
    """The directory through which local peers find each other cannot be used."""

    code = "discovery"


@dataclass(frozen=True)
class Announcement:
    """One announcement as received."""

    sender: bytes
    """32-byte p2p id, proven by the connection."""
    data: bytes


@dataclass(frozen=True)
class PeerStats:
    """Measurements of one peer."""

    connected: bool
    bandwidth: float | None
    """Bytes per second of blobs fetched from it, smoothed; None if never measured."""
    rtt: float | None
    """Round-trip time in seconds; None if never measured."""
    failures: int
    """Failures in a row, of any kind."""


@dataclass(frozen=True)
class TransportStats:
    """Counters since the transport was opened."""

    sent: Mapping[Kind, int]
    """Bytes sent, by kind (payload and our framing, without QUIC's own overhead)."""
    received: Mapping[Kind, int]
    """Bytes received, by kind; blob bytes count once per byte that arrived."""
    connects: int
    """Connections established, in either direction."""
    refused: int
    """Connections refused: not a member, banned, or too many connections."""
    disconnects: int
    """Connections lost or closed after they were established."""
    failed_handshakes: int
    """Connections, in either direction, that ended before both sides had greeted each other."""
    dropped: int
    """Announcements dropped from a full queue, outgoing or incoming."""
    duplicates: int
    """Announcements received again and not delivered again."""
    throttled: int
    """Times a peer that announces or asks was made to wait by a rate limit."""
    violations: int
    """Connections closed because the peer broke the protocol."""
    retries: int
    """Pieces of blobs asked for again because a holder failed or was silent."""
    rejected: int
    """Detected false sizes and hashes of blobs."""
    peers: Mapping[bytes, PeerStats]


class Transport(Protocol):
    """A member's connection to the other members. Every coroutine has a deadline."""

    node_id: bytes
    """Our own 32-byte p2p id."""

    def set_members(self, node_ids: Iterable[bytes]) -> None:
        """Replace the allow-list. Only these peers may connect and are kept connected."""

    def bar(self, peer: bytes, why: str) -> None:
        """Close the connection of a peer that broke the protocol, and ban it, longer each time."""

    async def announce(self, data: bytes) -> None:
        """Send `data` (at most MAX_ANNOUNCEMENT bytes) to all other members, best effort.

        Does not wait for delivery. The last 64 own announcements are sent again to a peer that
        (re)connects; receivers deliver each distinct message of a sender once. ValueError if `data`
        is too long.
        """

    def announcements(self) -> AsyncIterator[Announcement]:
        """Announcements of others from now on (and those that came before the first subscriber,
        bounded).

        A subscriber that falls behind loses the oldest, which is counted. Ends when the transport
        is closed.
        """

    def publish(self, data: bytes) -> bytes:
        """Serve `data` to members until retracted; returns its BLAKE3 digest (32 bytes)."""

    def publish_source(self, digest: bytes, size: int, read: ReadRange) -> None:
        """Serve a blob of `size` bytes that `read` produces piece by piece, without copying it into
        the store.
        """

    def retract(self, digest: bytes) -> None:
        """Stop serving a blob; unknown digests are ignored."""

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
        """Get the blob of exactly `size` bytes from any of `holders`, verified against its BLAKE3
        `digest`.

        Holders are asked in the given order, so rotate it to spread load. Holders that failed
        recently are asked last. With `keep` the blob is served onwards. With `keep` and `author`,
        a large blob is fetched in pieces that are served as they arrive; `author` is a holder that
        vouches for their hashes. Raises BlobUnavailable (nobody delivered within `deadline_s`) or
        BlobRejected (all that answered lied).
        """

    async def request(
        self, peer: bytes, topic: str, body: bytes, max_reply: int, deadline_s: float
    ) -> bytes:
        """Ask one peer and return its reply of at most `max_reply` bytes.

        Raises PeerUnreachable, its subclass RequestFailed if the peer answered but not usably, or
        RequestFailed's subclass RequestRefused if it would not.
        """

    def handle(self, topic: str, handler: Handler) -> None:
        """Answer requests on `topic`.

        A handler that has no answer raises RequestRefused. Whatever else it raises is logged, once
        for each peer, and reported to the peer as failed, without details.
        """

    def reachable(self) -> frozenset[bytes]:
        """Return the members with a live connection."""

    def stats(self) -> TransportStats:
        """Counters and measurements so far."""

    async def close(self) -> None:
        """Stop serving, close all connections; within one second."""


def short(node_id: bytes) -> str:
    """A peer's name in messages: the first ten hex digits of its id."""
    return node_id.hex()[:10]


def escaped(text: str) -> str:
    """Return a stranger's text as printable ASCII of at most 200 characters."""
    return ascii(text)[1:-1][:200]
