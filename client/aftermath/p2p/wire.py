"""The wire format: ALPN, frames, size limits and close codes.

A frame is a 4-byte big-endian length and that many bytes. Structured frames are msgpack arrays.
Nothing is allocated before its length passed a limit. The first bidirectional stream exchanges
`Hello`, and each later one carries one request and its reply. A unidirectional stream carries
announcements.
"""

from __future__ import annotations

import asyncio
import re
import struct
from enum import IntEnum
from typing import Any, TypeVar

import iroh
import msgspec

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.p2p.transport import MAX_ANNOUNCEMENT, MAX_REQUEST, escaped

ALPN = b"aftermath/1"
LANE_ALPN = b"aftermath-lane/1"
"""The ALPN of lanes: further connections to a connected peer, for requests only."""
MAX_HEADER = 512
MAX_TOPIC = 64
BODY_S = 30.0
_LENGTH = struct.Struct(">I")
_REASON = re.compile(r'reason: b"([^"]*)"')

T = TypeVar("T")


class ProtocolViolation(Exception):
    """The peer sent something no correct peer sends; its connection is closed."""


class Code(IntEnum):
    """Application error codes of connections and streams."""

    DONE = 0
    NOT_A_MEMBER = 1
    DUPLICATE = 2
    VIOLATION = 3
    SILENT = 4
    SHUTDOWN = 5
    STALLED = 6


class ReplyStatus(IntEnum):
    """How a peer answers a request."""

    OK = 0
    MISSING = 1
    REFUSED = 2
    FAILED = 3
    TOO_LARGE = 4


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """First frame of both sides. `instance` differs between two starts of the same peer."""

    instance: bytes


class BlobRequest(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Asks for `length` bytes from `offset` of the blob with this BLAKE3 digest."""

    digest: bytes
    offset: int
    length: int


class PieceRequest(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """Asks for one piece of a blob, verified against the list of hashes with the digest `listing`.

    It is sent only to peers that answered on `held-pieces/1` or `piece-hashes/1`.
    """

    digest: bytes
    listing: bytes
    index: int


class CallRequest(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Asks `topic`; a body of `size` bytes follows, the reply must come in `deadline_ms` and fit
    `max_reply` bytes.
    """

    topic: str
    size: int
    max_reply: int
    deadline_ms: int


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """Answer to a request. `size`: of the whole blob, or of the reply body that follows."""

    status: ReplyStatus
    size: int


Request = BlobRequest | CallRequest | PieceRequest


def frame(payload: bytes) -> bytes:
    """Return `payload` with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


def frame_of(message: msgspec.Struct) -> bytes:
    """Return a structured frame."""
    return frame(msgspec.msgpack.encode(message))


async def read_length(stream: iroh.RecvStream, cap: int) -> int:
    """Return the length of the next frame. Raises ProtocolViolation if it exceeds `cap`."""
    (length,) = _LENGTH.unpack(await stream.read_exact(_LENGTH.size))
    if length > cap:
        raise ProtocolViolation(f"a frame of {length} bytes where at most {cap} are allowed")
    return int(length)


async def read_frame(stream: iroh.RecvStream, cap: int = MAX_HEADER) -> bytes:
    """Return the next frame of at most `cap` bytes. Raises TimeoutError if it starts and does not
    continue.
    """
    length = await read_length(stream, cap)
    if not length:
        return b""
    async with asyncio.timeout(BODY_S):
        return bytes(await stream.read_exact(length))


async def read_message(stream: iroh.RecvStream, kind: type[T]) -> T:
    """Return the next frame as a `kind`. Raises ProtocolViolation for anything else."""
    return decode(await read_frame(stream), kind)


async def read_request(stream: iroh.RecvStream) -> Request:
    """Return the next frame as any request. Raises ProtocolViolation for anything else."""
    kind: Any = Request
    request: Request = decode(await read_frame(stream), kind)
    return request


def decode(data: bytes, kind: type[T]) -> T:
    """Decode and check one structured frame."""
    try:
        message: T = msgpack_as(data, kind)
    except Malformed as error:
        raise ProtocolViolation(f"an undecodable {kind!r}: {error}") from error
    problem = _problem(message)
    if problem:
        raise ProtocolViolation(problem)
    return message


def _problem(message: object) -> str | None:
    """Return why the numbers in a decoded message are not acceptable, or None."""
    match message:
        case Hello(instance=instance) if len(instance) != 16:
            return "a hello without a 16-byte instance"
        case BlobRequest(digest=digest, offset=offset, length=length):
            if len(digest) != 32 or offset < 0 or length < 1:
                return "a blob request with an impossible digest or range"
        case PieceRequest(digest=digest, listing=listing, index=index):
            if len(digest) != 32 or len(listing) != 32 or index < 0:
                return "a piece request with an impossible digest or index"
        case CallRequest() as call:
            if not 0 <= call.size <= MAX_REQUEST or len(call.topic) > MAX_TOPIC:
                return "a request with an oversized body or topic"
            if call.max_reply < 0 or call.deadline_ms < 0:
                return "a request with negative limits"
        case Reply(size=size) if size < 0:
            return "a reply of negative size"
    return None


def check_announcement(data: bytes) -> None:
    """Raise ValueError if `data` is too long to announce."""
    if len(data) > MAX_ANNOUNCEMENT:
        raise ValueError(
            f"an announcement of {len(data)} bytes; at most {MAX_ANNOUNCEMENT}: publish a blob instead"
        )


def cause(error: BaseException) -> str:
    """Return one readable line for a failure of the QUIC layer, without source locations."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if not isinstance(error, iroh.IrohError):
        return str(error) or type(error).__name__
    text = error.message()
    reason = _REASON.search(text)
    if reason:
        return (
            f"it closed the connection: {escaped(reason.group(1))}"
            if reason.group(1)
            else "it closed the connection"
        )
    line = [part.strip() for part in text.splitlines() if part.strip()][-1]
    return re.sub(r"\s*\(/[^)]*\)", "", line)
