"""What a data server and its clients say to each other, over TCP.

Decided
- A message is four bytes with its length, big-endian, and msgpack. It is refused by its length before it is read.
- A client asks for a description, then for sequences by number. An answer is as long as what was asked for, at most.
- There is nothing to authorise: every client that reaches the server may read the run's data.
"""

from __future__ import annotations

import msgspec

from aftermath.base.bounded import U64_MAX, Malformed, msgpack_as
from aftermath.data.source import FileRecord

MOST_SEQUENCES = 256
"""In one request."""
MOST_ASKED = 16 << 10
"""Bytes of a request."""
MOST_DESCRIBED = 1 << 20
"""Bytes of a description or a refusal."""
LENGTH = 4


class Describe(msgspec.Struct, tag="describe", frozen=True):
    """What do you serve?"""


class Read(msgspec.Struct, tag="read", frozen=True):
    """The sequences of these numbers."""

    indices: list[int]


class Description(msgspec.Struct, tag="description", frozen=True):
    """What is served."""

    token_bytes: int
    seq_len: int
    sequences: int
    records: list[FileRecord]


class Tokens(msgspec.Struct, tag="tokens", frozen=True):
    """Little-endian tokens, sequence after sequence."""

    data: bytes


class ErrorReply(msgspec.Struct, tag="refused", frozen=True):
    """Why not."""

    why: str


Asked = Describe | Read
Answer = Description | Tokens | ErrorReply


def packed(message: Asked | Answer) -> bytes:
    """A message as it travels, with its length before it."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(LENGTH, "big") + body


def asked(body: bytes) -> Asked:
    """A client's message. Raises Malformed."""
    message: Asked = msgpack_as(body, Asked)
    if isinstance(message, Read):
        if not 1 <= len(message.indices) <= MOST_SEQUENCES:
            raise Malformed(f"{len(message.indices)} sequences are asked for, and 1 to {MOST_SEQUENCES} may be")
        if not all(0 <= index <= U64_MAX for index in message.indices):
            raise Malformed("a sequence's number is out of range")
    return message


def answered(body: bytes) -> Answer:
    """A server's message. Raises Malformed."""
    message: Answer = msgpack_as(body, Answer)
    return message
