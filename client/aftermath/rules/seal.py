"""Sealed payloads: what masks them until a quorum of witnesses is closed, and what is told so that they can be opened.

Decided
- A member's key of a round is derived from its p2p secret and the round's place, so a member that restarts has it again
  and nobody else ever does. The seed is in the place: heights come again in another attempt at an epoch.
- The *seal* in a commitment is a hash of key, signer and place. So a commitment to somebody else's bytes is opened by
  nobody: under that one's seal its key is no key of this signer, under another seal the bytes are noise.
- A level's bytes are masked by a stream of their own, the hash of key and level as long as the level is. What is hashed
  and sent are the masked bytes: sizes stay, and all that is checked before a payload is decoded.
- Key, seal and streams are hashes in contexts of their own, so that none says anything of another.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec
import numpy as np
from blake3 import blake3

from aftermath.rules.fields import U8, U32, U64, Bytes32, RunId
from aftermath.rules.limits import RUN_ID_BYTES

_KEY = "aftermath payload key 1"
_SEAL = "aftermath payload seal 1"
_STREAM = "aftermath payload stream 1"
_PLACE = struct.Struct(f"<{RUN_ID_BYTES}sIIQB")
_PIECE = 1 << 20  # bytes of a stream that are made at a time


class ResultPlace(NamedTuple):
    """Whose result of which round it is: `seed` is that round's, and no other attempt at its epoch has it."""

    run_id: str
    epoch: int
    height: int
    seed: int
    seat: int

    def to_bytes(self) -> bytes:
        """As it is hashed: one encoding of each."""
        return _PLACE.pack(self.run_id.encode(), self.epoch, self.height, self.seed, self.seat)


class _OfSeat(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """`signer`, who sits on `seat`, says it of a round from `sender` (its p2p key)."""

    sender: Bytes32
    signer: Bytes32
    run_id: RunId
    epoch: U32
    height: U32
    seed: U64
    seat: U8

    @property
    def place(self) -> ResultPlace:
        return ResultPlace(self.run_id, self.epoch, self.height, self.seed, self.seat)


class Closed(_OfSeat, frozen=True, kw_only=True, array_like=True, tag=3, forbid_unknown_fields=True):
    """A witness of the results of round `height` attests none that it has not heard of by now."""


class Key(_OfSeat, frozen=True, kw_only=True, array_like=True, tag=4, forbid_unknown_fields=True):
    """What opens the result of round `height`."""

    key: Bytes32


def key_of(secret: bytes, place: ResultPlace) -> bytes:
    """The 32 bytes that open a result of the member with this p2p secret."""
    return blake3(secret + place.to_bytes(), derive_key_context=_KEY).digest()


def seal_of(key: bytes, signer: bytes, place: ResultPlace) -> bytes:
    """The 32 bytes by which a commitment names its key, without saying it."""
    return blake3(key + signer + place.to_bytes(), derive_key_context=_SEAL).digest()


def masked(data: bytes | bytearray | memoryview, key: bytes, level: int) -> bytes:
    """A level's payload under the stream of a key; the same of what is masked is the payload again."""
    stream = blake3(key + bytes([level]), derive_key_context=_STREAM)
    found = np.array(np.frombuffer(data, np.uint8))
    for start in range(0, len(found), _PIECE):
        piece = found[start : start + _PIECE]
        piece ^= np.frombuffer(stream.digest(len(piece), seek=start), np.uint8)
    return found.tobytes()
