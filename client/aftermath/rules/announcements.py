"""Announcements: what members tell each other in a round, signed and in canonical form.

An announcement is the sender's p2p key, its signature, a head and a msgpack body. Decoding refuses
every field that is out of range. Only the caller, who knows the run, can tell whether an
announcement fits the round.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.base.bounded import Malformed, msgpack_as
from aftermath.base.errors import BadAnnouncement
from aftermath.rules.fields import (
    U8,
    U32,
    U64,
    Bytes32,
    DeviceKind,
    Level,
    MicroBatch,
    NonNegative,
    Products,
    RunId,
    SequenceIndex,
    Size,
)
from aftermath.rules.limits import MAX_LEVELS, RUN_ID_BYTES
from aftermath.rules.run import REDO
from aftermath.rules.seal import ResultPlace, Reveal, RoundClosed, seal_of

MAX_ANNOUNCEMENT_BYTES = 4096
_COMMIT_DOMAIN = b"aftermath commitment 5\x00"
_SIGN_DOMAIN = b"aftermath announcement 3"
NOTHING = bytes(32)
"""Root of a private state that does not exist yet."""
_KEY = 32  # where the signature begins
_SIGNED = 32 + 64  # where the head begins
# The first byte of each kind of head.
_RESULT = b"\x01"
_READY = b"\x02"
_CLOSED = b"\x03"
_OPENS = b"\x04"
# Head of a commitment: run id, epoch, height, seed, seat, digest. The places are fixed, so that the
# program can compare two contradicting heads (`programs/coordinator/src/rules/equivocation.rs`).
# Two fit into one transaction.
_PLACE = struct.Struct(f"<{RUN_ID_BYTES}sIIQB32s")
_HEADS = {_RESULT: 1 + _PLACE.size, _READY: 1, _CLOSED: 1, _OPENS: 1}


class LevelPayload(NamedTuple):
    """Payload of one level: its BLAKE3 hash and its size in bytes."""

    blake3: Bytes32
    size: Size


class SequenceInterval(NamedTuple):
    """Sequences `start` up to but not including `stop` of the data set."""

    start: SequenceIndex
    stop: SequenceIndex


class PrivateRoots(NamedTuple):
    """Roots of a member's private optimizer state before and after its share (`base.merkle`)."""

    before: Bytes32
    after: Bytes32
    since: tuple[U32, U32] | None
    """Epoch and height of the commitment whose `after` equals this `before`. None if it is NOTHING.
    """


class PassSettings(NamedTuple):
    """What a member's passes computed with, as far as it decides who can replay its share."""

    micro_batch: MicroBatch
    """Sequences per pass."""
    products: Products
    """Precision of matrix products in the passes."""
    steps: Products
    """Precision of matrix products in the inner optimizer."""
    compiled: bool
    """Whether the passes were compiled."""
    device: DeviceKind
    """Kind of device (`replica.device_kind`), whose devices repeat each other's passes.

    Empty if no device repeats these passes.
    """

    @property
    def is_fp32(self) -> bool:
        """Return whether all products are in fp32."""
        return self.products == self.steps == "fp32"

    @property
    def can_be_judged(self) -> bool:
        """Return False if no device can judge these passes, with any optimizer."""
        return self.is_fp32 or bool(self.device)


class Commitment(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=1, forbid_unknown_fields=True
):
    """A member's result: `signer` (a wallet) trained `intervals` in round `height` of `epoch`.

    The member serves the payloads from `sender`, its p2p key. `seed` is the round's.
    """

    sender: Bytes32
    signer: Bytes32
    run_id: RunId
    epoch: U32
    height: U32
    seed: U64
    step: U32
    seat: U8
    tier: Level
    intervals: Annotated[tuple[SequenceInterval, ...], Meta(min_length=1, max_length=REDO + 1)]
    schema_hash: Bytes32
    levels: Annotated[dict[Level, LevelPayload], Meta(min_length=1, max_length=MAX_LEVELS)]
    private: PrivateRoots
    passes: PassSettings
    seal: Bytes32
    """Hash that names the key that masks the payloads (`rules.seal`)."""
    loss: float
    tokens_per_sec: NonNegative

    def __post_init__(self) -> None:
        # Sort levels, so that equal commitments have equal bytes.
        msgspec.structs.force_setattr(self, "levels", dict(sorted(self.levels.items())))

    @property
    def digest(self) -> bytes:
        """Return the 32-byte commitment whose fingerprint the witnesses attest."""
        return commitment(
            run_id=self.run_id,
            epoch=self.epoch,
            step=self.step,
            height=self.height,
            seat=self.seat,
            signer=self.signer,
            tier=self.tier,
            intervals=self.intervals,
            schema_hash=self.schema_hash,
            levels=self.levels,
            private=self.private,
            passes=self.passes,
            seal=self.seal,
        )

    @property
    def place(self) -> ResultPlace:
        """Return the round and the seat of this result."""
        return ResultPlace(self.run_id, self.epoch, self.height, self.seed, self.seat)

    def opened_by(self, key: bytes) -> bool:
        """Return whether this result's payloads are masked with `key`."""
        return seal_of(key, self.signer, self.place) == self.seal


class Ready(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=2, forbid_unknown_fields=True
):
    """`signer` has the model of `epoch` loaded and can train."""

    sender: Bytes32
    signer: Bytes32
    run_id: RunId
    epoch: U32
    seat: U8


Announcement = Commitment | Ready | RoundClosed | Reveal


class _Committed(msgspec.Struct, frozen=True, array_like=True):
    run_id: str
    epoch: int
    step: int
    height: int
    seat: int
    signer: bytes
    tier: int
    intervals: tuple[tuple[int, int], ...]
    schema_hash: bytes
    levels: tuple[tuple[int, bytes, int], ...]
    private: tuple[bytes, bytes, tuple[int, int] | None]
    passes: tuple[int, str, str, bool, str]
    seal: bytes


_HEAD_OF = {Ready: _READY, RoundClosed: _CLOSED, Reveal: _OPENS}
_encoder = msgspec.msgpack.Encoder()


def commitment(
    *,
    run_id: str,
    epoch: int,
    step: int,
    height: int,
    seat: int,
    signer: bytes,
    tier: int,
    intervals: Sequence[tuple[int, int]],
    schema_hash: bytes,
    levels: Mapping[int, tuple[bytes, int]],
    private: tuple[bytes, bytes, tuple[int, int] | None],
    passes: tuple[int, str, str, bool, str],
    seal: bytes,
) -> bytes:
    """Return the 32-byte digest that binds a member to a result.

    `intervals` are (start, stop) sequences, `levels` {level: (BLAKE3, bytes)}, `private` the fields
    of `PrivateRoots`, `passes` those of `PassSettings`.
    """
    committed = _Committed(
        run_id=run_id,
        epoch=epoch,
        step=step,
        height=height,
        seat=seat,
        signer=signer,
        tier=tier,
        intervals=tuple((start, stop) for start, stop in intervals),
        schema_hash=schema_hash,
        levels=tuple((level, *levels[level]) for level in sorted(levels)),
        private=private,
        passes=passes,
        seal=seal,
    )
    return hashlib.sha256(_COMMIT_DOMAIN + _encoder.encode(committed)).digest()


def encode_announcement(announcement: Announcement, secret: bytes) -> bytes:
    """Sign with the 32-byte ed25519 secret of `announcement.sender` and frame for the wire.

    Raises BadAnnouncement if a field is out of range or the secret is not the sender's.
    """
    keypair = Keypair.from_seed(secret)
    if bytes(keypair.pubkey()) != announcement.sender:
        raise BadAnnouncement("the p2p secret does not belong to the announcement's sender")
    body = _encoder.encode(announcement)
    # Never send what a peer would refuse.
    _parse_body(body)
    head = head_of(announcement)
    return announcement.sender + bytes(keypair.sign_message(statement(head, body))) + head + body


def decode_announcement(data: bytes) -> Announcement:
    """Decode an announcement and check its size, signature, types, ranges and form, in this order.

    Raises BadAnnouncement. The caller checks whether `sender` is a member and the fields fit the
    round.
    """
    signed, body = _parts(data)
    # Check the signature before anything is parsed.
    if not Signature.from_bytes(signed.signature).verify(
        Pubkey.from_bytes(signed.key), signed.statement
    ):
        raise BadAnnouncement("the announcement is not signed by the key it names")
    announcement = _parse_body(body)
    if announcement.sender != signed.key:
        raise BadAnnouncement("the announcement is signed by another key than its sender's")
    if data[_SIGNED : len(data) - len(body)] != head_of(announcement):
        raise BadAnnouncement("the announcement's head does not match its body")
    return announcement


class Signed(NamedTuple):
    """A signed message, as the Ed25519 program checks it."""

    key: bytes
    signature: bytes
    statement: bytes


def signed_part(data: bytes) -> Signed:
    """Split an announcement without checking it. Raises BadAnnouncement if its size is invalid."""
    return _parts(data)[0]


def head_of(announcement: Announcement) -> bytes:
    """Return the bytes in front of an announcement's body."""
    if isinstance(announcement, Commitment):
        return _RESULT + _PLACE.pack(
            announcement.run_id.encode(),
            announcement.epoch,
            announcement.height,
            announcement.seed,
            announcement.seat,
            announcement.digest,
        )
    return _HEAD_OF[type(announcement)]


def statement(head: bytes, body: bytes) -> bytes:
    """Return the bytes that the sender signs."""
    return _SIGN_DOMAIN + head + hashlib.sha256(body).digest()


def _parts(data: bytes) -> tuple[Signed, bytes]:
    if not _SIGNED + 1 < len(data) <= MAX_ANNOUNCEMENT_BYTES:
        raise BadAnnouncement(
            f"an announcement of {len(data)} bytes; it must have {_SIGNED + 2} to {MAX_ANNOUNCEMENT_BYTES}"
        )
    size = _HEADS.get(data[_SIGNED : _SIGNED + 1], 0)
    head = data[_SIGNED : _SIGNED + size]
    body = data[_SIGNED + size :]
    if not size or not body:
        raise BadAnnouncement("an announcement begins with another head")
    return Signed(data[:_KEY], data[_KEY:_SIGNED], statement(head, body)), body


def _parse_body(body: bytes) -> Announcement:
    try:
        announcement: Announcement = msgpack_as(body, Announcement)
    except Malformed:
        raise BadAnnouncement(
            "the announcement's body is not valid: a field is missing, has the wrong type or is out of range"
        ) from None
    if isinstance(announcement, Commitment):
        _check_commitment(announcement)
    # The encoding is unique, so a signed body cannot be re-encoded into other bytes.
    if _encoder.encode(announcement) != body:
        raise BadAnnouncement("an announcement must be in canonical form")
    return announcement


def _check_commitment(announcement: Commitment) -> None:
    if sorted(announcement.levels) != list(range(announcement.tier, max(announcement.levels) + 1)):
        raise BadAnnouncement(
            f"a member of tier {announcement.tier} must send every level from {announcement.tier} up, without a gap"
        )
    if any(start >= stop for start, stop in announcement.intervals):
        raise BadAnnouncement("an interval of sequences must not be empty")
    before, after, since = announcement.private
    if (before == NOTHING) != (since is None) or after == NOTHING:
        raise BadAnnouncement(
            "private must have a root after the share, and a since exactly if it has a root before the share"
        )
    if since is not None and since >= (announcement.epoch, announcement.height):
        raise BadAnnouncement("the private state before a share must be of an earlier round")
    if not math.isfinite(announcement.loss) or not math.isfinite(announcement.tokens_per_sec):
        raise BadAnnouncement("loss and tokens per second must be finite numbers")
