"""Test that only its key unmasks a payload, and that nobody else can reveal that key as its own."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules.seal import ResultPlace, key_of, masked, seal_of

PLACE = ResultPlace("test", 2, 7, 2**64 - 1, 5)
SECRET = bytes(range(32))
WALLET = b"w" * 32
OTHERS = [
    PLACE._replace(run_id="test2"),
    PLACE._replace(epoch=3),
    PLACE._replace(height=8),
    PLACE._replace(seed=0),
    PLACE._replace(seat=6),
]

secrets = st.binary(min_size=32, max_size=32)
levels = st.integers(0, 7)


@given(st.binary(max_size=3000), secrets, levels)
def test_mask_applied_twice_restores_data(data: bytes, key: bytes, level: int) -> None:
    sealed = masked(data, key, level)
    assert len(sealed) == len(data)
    assert masked(sealed, key, level) == data


@given(secrets, levels, secrets, levels)
def test_mask_differs_for_each_key_and_level(
    one: bytes, level: int, other: bytes, second: int
) -> None:
    same = (one, level) == (other, second)
    assert (masked(bytes(64), one, level) == masked(bytes(64), other, second)) == same


def test_payload_stream_in_pieces_equals_whole() -> None:
    size = (2 << 20) + 5
    whole = blake3(SECRET + b"\x03", derive_key_context="aftermath payload stream 1").digest(size)
    assert masked(bytes(size), SECRET, 3) == whole


@pytest.mark.parametrize("other", OTHERS)
def test_every_place_has_its_own_key_and_seal(other: ResultPlace) -> None:
    assert key_of(SECRET, other) != key_of(SECRET, PLACE)
    key = key_of(SECRET, PLACE)
    assert seal_of(key, WALLET, other) != seal_of(key, WALLET, PLACE)


@given(secrets, secrets, secrets, secrets)
def test_seal_binds_key_and_signer(key: bytes, other: bytes, signer: bytes, second: bytes) -> None:
    same = (key, signer) == (other, second)
    assert (seal_of(key, signer, PLACE) == seal_of(other, second, PLACE)) == same


def test_keys_seals_and_streams_keep_golden_values() -> None:
    """Members of different versions must agree on them. A change needs another number in the
    context.
    """
    key = key_of(SECRET, PLACE)
    values = key.hex(), seal_of(key, WALLET, PLACE).hex(), masked(bytes(8), key, 1).hex()
    assert values == (
        "a232900c55f44f4e9c2f7f15facf04c17fdf48e30a975cc643bc0b956f27eb91",
        "2014844caa30eb7b80a9a5f5b0cf997ad2cd238ffd5304487e323ebf91f557ce",
        "ad962565b4117fcd",
    )
