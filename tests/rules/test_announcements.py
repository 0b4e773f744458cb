"""Test that only canonical, signed, in-range announcements are accepted, and that any changed byte
is detected.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair

from aftermath.base.errors import BadAnnouncement
from aftermath.rules import announcements
from aftermath.rules.announcements import (
    Announcement,
    Commitment,
    LevelPayload,
    PassSettings,
    PrivateRoots,
    Ready,
    SequenceInterval,
    decode_announcement,
    encode_announcement,
)
from aftermath.rules.seal import Reveal, RoundClosed

SECRET = bytes(range(32))
SENDER = bytes(Keypair.from_seed(SECRET).pubkey())
GOOD: dict[str, Any] = {
    "sender": SENDER,
    "signer": b"w" * 32,
    "run_id": "test",
    "epoch": 2,
    "height": 7,
    "seed": 2**64 - 1,
    "step": 27,
    "seat": 5,
    "tier": 1,
    "intervals": (SequenceInterval(40, 42), SequenceInterval(1000, 1003)),
    "schema_hash": b"s" * 32,
    "levels": {1: LevelPayload(b"1" * 32, 1234), 2: LevelPayload(b"2" * 32, 99)},
    "private": PrivateRoots(b"b" * 32, b"a" * 32, (2, 6)),
    "passes": PassSettings(8, "bf16", "fp32", False, "cuda"),
    "seal": b"k" * 32,
    "loss": 3.25,
    "tokens_per_sec": 800.0,
}
READY = Ready(sender=SENDER, signer=b"w" * 32, run_id="test", epoch=2, seat=5)
CLOSED = RoundClosed(
    sender=SENDER, signer=b"w" * 32, run_id="test", epoch=2, height=7, seed=2**64 - 1, seat=5
)
KEY = Reveal(
    sender=SENDER,
    signer=b"w" * 32,
    run_id="test",
    epoch=2,
    height=7,
    seed=2**64 - 1,
    seat=5,
    key=b"k" * 32,
)


def signed(body: bytes) -> bytes:
    """Return any bytes as a signed body, as a hostile member could send them."""
    head = announcements.head_of(Commitment(**GOOD))
    return (
        SENDER
        + bytes(Keypair.from_seed(SECRET).sign_message(announcements.statement(head, body)))
        + head
        + body
    )


def raw(**changed: Any) -> bytes:
    """Return the body of a valid commitment with some fields replaced, and `extra` ones at its
    end.
    """
    tag, *values = msgspec.msgpack.decode(msgspec.msgpack.encode(Commitment(**GOOD)), strict=False)
    fields = {"tag": tag} | dict(zip(Commitment.__struct_fields__, values, strict=True))
    return msgspec.msgpack.encode(list((fields | changed).values()))


def nested(depth: int) -> bytes:
    """Return arrays in arrays: a short document that exhausts a recursive parser."""
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize("announcement", [Commitment(**GOOD), READY, CLOSED, KEY])
def test_announcement_is_decoded_unchanged(announcement: Announcement) -> None:
    data = encode_announcement(announcement, SECRET)
    assert len(data) <= announcements.MAX_ANNOUNCEMENT_BYTES
    received = decode_announcement(data)
    assert received == announcement
    assert received.sender == SENDER


def test_commitment_to_eight_levels_stays_small() -> None:
    levels = {level: LevelPayload(bytes([level]) * 32, 2**31 - 1) for level in range(8)}
    data = encode_announcement(Commitment(**(GOOD | {"tier": 0, "levels": levels})), SECRET)
    assert len(data) < 1024


def test_commitment_level_order_does_not_matter() -> None:
    backwards = Commitment(**(GOOD | {"levels": dict(reversed(GOOD["levels"].items()))}))
    assert encode_announcement(backwards, SECRET) == encode_announcement(Commitment(**GOOD), SECRET)
    assert backwards.digest == Commitment(**GOOD).digest


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": "other"},
        {"epoch": 3},
        {"height": 8},
        {"step": 28},
        {"seat": 6},
        {"signer": b"x" * 32},
        {"tier": 2, "levels": {2: LevelPayload(b"2" * 32, 99)}},
        {"intervals": (SequenceInterval(40, 42), SequenceInterval(1000, 1004))},
        {"schema_hash": b"t" * 32},
        {"levels": GOOD["levels"] | {2: LevelPayload(b"2" * 32, 98)}},
        {"levels": GOOD["levels"] | {2: LevelPayload(b"3" * 32, 99)}},
        {"private": PrivateRoots(b"c" * 32, b"a" * 32, (2, 6))},
        {"private": PrivateRoots(b"b" * 32, b"c" * 32, (2, 6))},
        {"private": PrivateRoots(b"b" * 32, b"a" * 32, (2, 5))},
        {"private": PrivateRoots(b"b" * 32, b"a" * 32, (1, 6))},
        {"private": PrivateRoots(announcements.NOTHING, b"a" * 32, None)},
        {"passes": PassSettings(9, "bf16", "fp32", False, "cuda")},
        {"passes": PassSettings(8, "fp32", "fp32", False, "cuda")},
        {"passes": PassSettings(8, "bf16", "bf16", False, "cuda")},
        {"passes": PassSettings(8, "bf16", "fp32", True, "cuda")},
        {"passes": PassSettings(8, "bf16", "fp32", False, "cpu")},
        {"seal": b"l" * 32},
    ],
)
def test_commitment_binds_every_committed_field(changed: dict[str, Any]) -> None:
    assert Commitment(**(GOOD | changed)).digest != Commitment(**GOOD).digest


def test_commitment_digest_ignores_loss_and_speed() -> None:
    assert (
        Commitment(**(GOOD | {"loss": 1.0, "tokens_per_sec": 1.0})).digest
        == Commitment(**GOOD).digest
    )


def test_commitment_digest_keeps_golden_value() -> None:
    """Members of different versions must agree on it. A change needs a new domain prefix."""
    assert (
        Commitment(**GOOD).digest.hex()
        == "624691f7cf8f741f9e57320fd41d75d4f918ebb4d6818f88229b48cf55411c29"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": ""},
        {"run_id": "r" * 33},
        {"epoch": -1},
        {"epoch": 2**32},
        {"height": 1.0},
        {"seat": 256},
        {"step": "27"},
        {"tier": 8},
        {"tier": 0},
        {"private": [b"b" * 32, b"a" * 32]},
        {"private": [b"b" * 32, b"a" * 31, [2, 6]]},
        {"private": [b"b" * 32, b"a" * 32, [2, 7]]},
        {"private": [b"b" * 32, b"a" * 32, [3, 0]]},
        {"private": [b"b" * 32, b"a" * 32, [2, -1]]},
        {"private": [b"b" * 32, b"a" * 32, None]},
        {"private": [bytes(32), b"a" * 32, [2, 6]]},
        {"private": [b"b" * 32, bytes(32), [2, 6]]},
        {"passes": [8, "bf16", "cuda"]},
        {"passes": [0, "bf16", "fp32", False, "cuda"]},
        {"passes": [2**16, "bf16", "fp32", False, "cuda"]},
        {"passes": [8, "fp8", "fp32", False, "cuda"]},
        {"passes": [8, "bf16", "fp8", False, "cuda"]},
        {"passes": [8, "bf16", "fp32", 0, "cuda"]},
        {"passes": [8, "bf16", "fp32", False, ["cuda"]]},
        {"passes": [8, "bf16", "fp32", False, "c" * 129]},
        {"passes": [8, "bf16", "fp32", False, "cuda\n"]},
        {"passes": [8, "bf16", "fp32", False, "cuda\x1b[2J"]},
        {"passes": [8, "bf16", "fp32", False, "c\u00fcda"]},
        {"seal": b"k" * 31},
        {"seal": None},
        {"intervals": []},
        {"intervals": [[1, 2]] * 6},
        {"intervals": [[5, 5]]},
        {"intervals": [[5]]},
        {"intervals": [[0, 2**64 - 1]]},
        {"schema_hash": b"s" * 31},
        {"signer": "w" * 32},
        {"levels": {}},
        {"levels": {1: [b"1" * 32, 0], 2: [b"2" * 32, 1]}},
        {"levels": {1: [b"1" * 31, 1], 2: [b"2" * 32, 1]}},
        {"levels": {1: [b"1" * 32, 2**31], 2: [b"2" * 32, 1]}},
        {"levels": {1: [b"1" * 32, 1], 3: [b"2" * 32, 1]}},
        {"levels": {8: [b"1" * 32, 1]}},
        {"loss": float("nan")},
        {"loss": float("inf")},
        {"tokens_per_sec": float("inf")},
        {"tokens_per_sec": -1.0},
        {"extra": 1},
        {"tag": 3},
        {"tag": "commitment"},
        {"intervals": [[[[[[[[[[5]]]]]]]]]]},
    ],
)
def test_signed_impossible_commitment_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadAnnouncement) as refused:
        decode_announcement(signed(raw(**changed)))
    assert not {"$", "`"} & set(str(refused.value)), "the decoder's own words are not shown"


def test_noncanonical_encoding_is_refused() -> None:
    decode_announcement(signed(raw()))
    with pytest.raises(BadAnnouncement, match="canonical"):
        decode_announcement(signed(raw().replace(b"test\x02", b"test\xcc\x02")))


def test_trailing_bytes_and_oversized_messages_are_refused() -> None:
    with pytest.raises(BadAnnouncement):
        decode_announcement(signed(raw() + b"\x00"))
    with pytest.raises(BadAnnouncement, match="98 to 4096"):
        decode_announcement(signed(raw() + bytes(4096)))
    with pytest.raises(BadAnnouncement, match="98 to 4096"):
        decode_announcement(b"")


@pytest.mark.parametrize("depth", [9, 900, 4096 - 179])
@pytest.mark.parametrize("before", [b"", b"\x92\x01", b"\x81\xa1x"])
def test_deep_nesting_is_refused_for_every_signer(depth: int, before: bytes) -> None:
    """Nested bodies raise before the parser recurses into them, also below an unknown field."""
    body = (before + nested(depth))[: 4096 - 96 - 82]
    for data in (body, SENDER + bytes(64) + body, signed(body)):
        with pytest.raises(BadAnnouncement):
            decode_announcement(data)


def test_unsigned_body_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(announcements, "_parse_body", parsed.append)
    unsigned = announcements.head_of(Commitment(**GOOD)) + raw()
    for data in (
        bytes(96) + unsigned,
        SENDER + bytes(64) + unsigned,
        SENDER + bytes(64) + b"\x02" + raw(),
    ):
        with pytest.raises(BadAnnouncement, match="not signed"):
            decode_announcement(data)
    assert parsed == []


def test_announcement_head_must_match_body() -> None:
    """The chain reads the head, and members read the body."""
    body = encode_announcement(Commitment(**GOOD), SECRET)[96 + 82 :]
    for changed in (
        {"epoch": 3},
        {"height": 8},
        {"seed": 0},
        {"seat": 6},
        {"run_id": "other"},
        {"step": 28},
    ):
        head = announcements.head_of(Commitment(**(GOOD | changed)))
        assert len(head) == 82
        signature = bytes(
            Keypair.from_seed(SECRET).sign_message(announcements.statement(head, body))
        )
        with pytest.raises(BadAnnouncement, match="head"):
            decode_announcement(SENDER + signature + head + body)
    with pytest.raises(BadAnnouncement, match="another head"):
        decode_announcement(SENDER + bytes(64) + b"\x05" + body)


def test_announcement_by_another_key_is_refused() -> None:
    with pytest.raises(BadAnnouncement, match="does not belong"):
        encode_announcement(READY, b"\x07" * 32)
    head = b"\x02"
    body = encode_announcement(READY, SECRET)[97:]
    other = Keypair.from_seed(b"\x07" * 32)
    forged = bytes(other.sign_message(announcements.statement(head, body))) + head + body
    with pytest.raises(BadAnnouncement, match="not signed by the key it names"):
        decode_announcement(SENDER + forged)
    with pytest.raises(BadAnnouncement, match="another key than its sender's"):
        decode_announcement(bytes(other.pubkey()) + forged)


def test_invalid_announcement_is_not_encoded() -> None:
    with pytest.raises(BadAnnouncement, match="finite"):
        encode_announcement(Commitment(**(GOOD | {"loss": float("nan")})), SECRET)


@pytest.mark.parametrize("good", [CLOSED, KEY])
@pytest.mark.parametrize(
    "changed",
    [
        {"run_id": ""},
        {"epoch": -1},
        {"height": 2**32},
        {"seed": -1},
        {"seat": 256},
        {"signer": b"w" * 31},
        {"key": b"k" * 33},
        {"key": "k" * 32},
        {"extra": 1},
        {"tag": 2},
    ],
)
def test_reveal_out_of_range_is_refused(
    good: RoundClosed | Reveal, changed: dict[str, Any]
) -> None:
    if changed.keys() - {"extra", "tag"} > set(good.__struct_fields__):
        return
    tag, *values = msgspec.msgpack.decode(msgspec.msgpack.encode(good), strict=False)
    fields = {"tag": tag} | dict(zip(good.__struct_fields__, values, strict=True))
    head = announcements.head_of(good)

    def encoded(values: dict[str, Any]) -> bytes:
        body = announcements._encoder.encode(list(values.values()))
        return (
            SENDER
            + bytes(Keypair.from_seed(SECRET).sign_message(announcements.statement(head, body)))
            + head
            + body
        )

    assert decode_announcement(encoded(fields)) == good
    with pytest.raises(BadAnnouncement):
        decode_announcement(encoded(fields | changed))


@given(st.data())
def test_announcement_with_changed_byte_is_refused(data: st.DataObject) -> None:
    message = bytearray(encode_announcement(Commitment(**GOOD), SECRET))
    place = data.draw(st.integers(0, len(message) - 1))
    message[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadAnnouncement):
        decode_announcement(bytes(message))


@given(st.binary(max_size=300))
def test_random_announcement_bytes_are_refused(noise: bytes) -> None:
    with pytest.raises(BadAnnouncement):
        decode_announcement(noise)
