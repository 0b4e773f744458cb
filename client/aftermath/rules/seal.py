"""Seals: keys that mask payloads until a quorum of witnesses has closed the round.

A commitment contains the seal: the hash of its key, the signer and the place. Once the round is
closed, the member reveals the key.
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
_PIECE = 1 << 20  # bytes of a mask that are computed at a time


class ResultPlace(NamedTuple):
    """A seat in a round. `seed` is the round's and differs in another attempt at the epoch."""

    run_id: str
    epoch: int
    height: int
    seed: int
    seat: int

    def to_bytes(self) -> bytes:
        """Return the canonical bytes that are hashed."""
        return _PLACE.pack(self.run_id.encode(), self.epoch, self.height, self.seed, self.seat)


class _OfSeat(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True
):
    """A message about a round that `signer`, on `seat`, sends from its p2p key `sender`."""

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


class RoundClosed(
    _OfSeat, frozen=True, kw_only=True, array_like=True, tag=3, forbid_unknown_fields=True
):
    """A witness of the results of round `height` rejects results announced after this message."""


class Reveal(
    _OfSeat, frozen=True, kw_only=True, array_like=True, tag=4, forbid_unknown_fields=True
):
    """The key that unmasks the sender's result of round `height`."""

    key: Bytes32


def key_of(secret: bytes, place: ResultPlace) -> bytes:
    """Return the 32-byte key of the member with this p2p secret.

    It is derived, so a restarted member gets the same key. Another attempt at an epoch repeats
    heights, but not the seed in `place`.
    """
    # Key, seal and mask use separate hash contexts, so that none reveals another.
    return blake3(secret + place.to_bytes(), derive_key_context=_KEY).digest()


def seal_of(key: bytes, signer: bytes, place: ResultPlace) -> bytes:
    """Return the 32-byte seal by which a commitment names its key without revealing it."""
    # The signer is part of the seal. So a member that copies another member's commitment can never
    # reveal a matching key.
    return blake3(key + signer + place.to_bytes(), derive_key_context=_SEAL).digest()


def masked(data: bytes | bytearray | memoryview, key: bytes, level: int) -> bytes:
    """Mask a level's payload, or unmask it: the operation is its own inverse.

    The mask has the length of the payload. Hashes and sizes are of masked bytes, so members check
    them before the reveal.
    """
    stream = blake3(key + bytes([level]), derive_key_context=_STREAM)
    output = np.array(np.frombuffer(data, np.uint8))
    for start in range(0, len(output), _PIECE):
        piece = output[start : start + _PIECE]
        piece ^= np.frombuffer(stream.digest(len(piece), seek=start), np.uint8)
    return output.tobytes()
