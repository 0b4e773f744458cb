"""The messages between a data server and its clients: msgpack after its length, over TCP.

The length is four bytes, big-endian, and is checked before the body is read. A client asks for
the description, then for sequences by number. There is no authorisation.
"""

from __future__ import annotations

import msgspec

from aftermath.base.bounded import U64_MAX, Malformed, msgpack_as
from aftermath.data.source import FileRecord

MAX_SEQUENCES = 256
"""The most sequences in one request."""
MAX_REQUEST_BYTES = 16 << 10
"""The largest request."""
MAX_DESCRIPTION_BYTES = 1 << 20
"""The largest description or error."""
LENGTH_BYTES = 4


class DescribeRequest(msgspec.Struct, tag="describe", frozen=True):
    """A request for the description."""


class ReadRequest(msgspec.Struct, tag="read", frozen=True):
    """A request for sequences by number."""

    indices: list[int]


class Description(msgspec.Struct, tag="description", frozen=True):
    """The shape and the records of the served data."""

    token_bytes: int
    seq_len: int
    sequences: int
    records: list[FileRecord]


class TokensReply(msgspec.Struct, tag="tokens", frozen=True):
    """Little-endian tokens, sequence after sequence."""

    data: bytes


class ErrorReply(msgspec.Struct, tag="refused", frozen=True):
    """The reason why the server refuses a request."""

    why: str


Request = DescribeRequest | ReadRequest
Reply = Description | TokensReply | ErrorReply


def encode_message(message: Request | Reply) -> bytes:
    """Return the bytes of a message, with its length before it."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_request(body: bytes) -> Request:
    """Return a client's message. Raise Malformed."""
    message: Request = msgpack_as(body, Request)
    if isinstance(message, ReadRequest):
        if not 1 <= len(message.indices) <= MAX_SEQUENCES:
            raise Malformed(
                f"the request has {len(message.indices)} sequences; 1 to {MAX_SEQUENCES} are allowed"
            )
        if not all(0 <= index <= U64_MAX for index in message.indices):
            raise Malformed("a sequence number is out of range")
    return message


def decode_reply(body: bytes) -> Reply:
    """Return a server's message. Raise Malformed."""
    message: Reply = msgpack_as(body, Reply)
    return message
