"""The wire format: round trips, one refusal per rule, and hostile bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.errors import SchemaError
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import BadPayload, decode_level, encode_level
from aftermath.optim.index_sizes import bits_of
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import Values
from aftermath.optim.transform import strongest
from optim.optim_oracle import entry_bases, toy_schema

BIT = toy_schema().results
FLOAT = toy_schema(quantize_1bit=False).results
LEVEL = 1


def result(results, seed: int = 0, zeros: float = 0.97) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and values of a level's entries, many of them unused, like those of a sparse
    residual.
    """
    generator = torch.Generator().manual_seed(seed)
    layout = level_layout(results, LEVEL)
    pairs = []
    for group in layout.groups:
        rows = torch.randn(group.blocks, group.block, generator=generator)
        rows[torch.rand(rows.shape, generator=generator) < zeros] = 0
        pairs.append(strongest(rows, group.topk))
    indices, values = (layout.canonical([pair[i] for pair in pairs]).numpy() for i in range(2))
    return indices.astype(np.uint16), values


def payload(results, **changes) -> bytearray:
    return bytearray(encode_level(results, LEVEL, *result(results, **changes)))


@pytest.mark.parametrize("results", [BIT, FLOAT])
@pytest.mark.parametrize("zeros", [0.0, 0.97, 1.0])
def test_codec_round_trip_keeps_votes(results, zeros: float) -> None:
    indices, values = result(results, seed=3, zeros=zeros)
    data = encode_level(results, LEVEL, indices, values)
    assert len(data) == results.payload_bytes(LEVEL)
    votes = decode_level(memoryview(data), results, LEVEL)
    used = indices != UNUSED
    assert used.any() == (zeros < 1)
    layout = level_layout(results, LEVEL)
    assert votes.positions.tolist() == (entry_bases(layout) + indices)[used].tolist()
    assert votes.values.tolist() == (np.sign(values) if results is BIT else values)[used].tolist()


def test_codec_writes_indices_then_signs() -> None:
    """Three blocks of 64 keep 4 entries each: 24 bits of indices per block, then the signs, lowest
    bit first.

    `test_index_coding` has the code of {2, 9, 63}. 17 has the low bits 1 and the high part 2.
    """
    results = toy_schema(
        hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    names = [blocks.segment.name for blocks in results.of_level(0)]
    assert [name.split(".")[-2] for name in names] == ["down_proj", "gate_proj", "up_proj"]
    indices = np.full(12, UNUSED, np.uint16)
    values = np.zeros(12, np.float32)
    indices[:3] = (2, 9, 63)
    values[:3] = (-1.0, 0.5, -3.0)
    indices[8] = 17
    values[8] = -0.25
    data = encode_level(results, 0, indices, values)
    first = sum(1 << bit for bit in (1, 3, 6, 7, 8, 12, 14, 21))
    third = 1 << 0 | 1 << 14
    assert data == (first | third << 48).to_bytes(9, "little") + bytes([0b101, 0b1])
    votes = decode_level(data, results, 0)
    assert votes.positions.tolist() == [2, 9, 63, 128 + 17]
    assert votes.values.tolist() == [-1, 1, -1, -1]


@pytest.mark.parametrize("results", [BIT, FLOAT])
@pytest.mark.parametrize("size", [0, 1, -1, 7])
def test_payload_of_wrong_size_is_refused(results, size: int) -> None:
    data = bytes(payload(results))
    wrong = (
        data[:size] if size == 0 else data[: len(data) + size] if size < 0 else data + bytes(size)
    )
    with pytest.raises(BadPayload, match=f"level 1 must have {len(data)} bytes, not {len(wrong)}"):
        decode_level(wrong, results, LEVEL)


def test_unknown_level_is_refused() -> None:
    with pytest.raises(SchemaError, match="level 3"):
        decode_level(b"", BIT, 3)


def test_invalid_index_code_is_refused() -> None:
    """A block of 64 keeps at most 4 indices in 24 bits, and at most 4 of the last 12 bits are ones.
    Three blocks fill 9 bytes.
    """
    results = toy_schema(
        hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    low_bits = sum((4 + entry) << 3 * entry for entry in range(4))  # of 60 to 63
    code = low_bits | 0b1111 << 12 + 7
    for block, name in enumerate(("down_proj", "gate_proj", "up_proj")):
        data = (code << 24 * block).to_bytes(9, "little") + bytes(2)
        assert decode_level(data, results, 0).positions.tolist() == [
            64 * block + at for at in range(60, 64)
        ]
        for wrong in (code ^ 1 << 12, (1 << 24) - 1, 1):
            data = (wrong << 24 * block).to_bytes(9, "little") + bytes(2)
            with pytest.raises(
                BadPayload,
                match=f"{name}.weight, block 0: the indices are not a set of at most 4 of 64",
            ):
                decode_level(data, results, 0)


def test_bits_after_the_last_index_are_refused() -> None:
    """Three blocks of 64 with 3 entries take 19 bits each: 57 of the 64 bits in eight bytes."""
    results = toy_schema(
        topk=3, hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    for bit in range(57, 64):
        data = bytearray(
            encode_level(results, 0, np.full(9, UNUSED, np.uint16), np.zeros(9, np.float32))
        )
        data[bit // 8] |= 1 << bit % 8
        with pytest.raises(BadPayload, match="level 0: a bit after the last index is set"):
            decode_level(data, results, 0)


def test_invalid_index_code_error_names_the_block() -> None:
    first = 0
    for cut in BIT.of_level(LEVEL):
        bits = bits_of(cut.size, cut.topk)
        last = first + (cut.count - 1) * bits
        data = (((1 << bits) - 1) << last).to_bytes(BIT.payload_bytes(LEVEL), "little")
        with pytest.raises(
            BadPayload,
            match=f"level 1, {cut.segment.name}, block {cut.count - 1}: the indices are not a set of at most",
        ):
            decode_level(data, BIT, LEVEL)
        first += cut.count * bits
    assert max(cut.count for cut in BIT.of_level(LEVEL)) > 1


def test_stray_sign_bits_are_refused() -> None:
    results = toy_schema(
        topk=3, hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    data = bytearray(
        encode_level(results, 0, np.full(9, UNUSED, np.uint16), np.zeros(9, np.float32))
    )
    for bit, sentence in (
        (9, "after the last sign"),
        (15, "after the last sign"),
        (4, "entry 4: the sign of an unused"),
    ):
        broken = bytearray(data)
        broken[results.index_bytes(0) + bit // 8] |= 1 << bit % 8
        with pytest.raises(BadPayload, match=sentence):
            decode_level(broken, results, 0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40])
def test_zero_subnormal_or_infinite_float_is_refused(value: float) -> None:
    data = payload(FLOAT, zeros=0.0)
    struct.pack_into("<f", data, FLOAT.index_bytes(LEVEL) + 4 * 5, value)
    with pytest.raises(BadPayload, match="entry 5: the value is zero, too small or not finite"):
        decode_level(data, FLOAT, LEVEL)


@pytest.mark.parametrize("value", [2.0**-126, -(2.0**-126), (2 - 2.0**-23) * 2.0**127])
def test_smallest_and_largest_float_votes_are_accepted(value: float) -> None:
    """A float vote is a normal fp32. The smallest one is 2^-126."""
    data = payload(FLOAT, zeros=0.0)
    struct.pack_into("<f", data, FLOAT.index_bytes(LEVEL) + 4 * 5, value)
    assert decode_level(data, FLOAT, LEVEL).values[5] == value


def test_value_in_an_unused_entry_is_refused() -> None:
    data = payload(FLOAT, zeros=1.0)
    struct.pack_into("<f", data, FLOAT.index_bytes(LEVEL), -0.0)
    with pytest.raises(BadPayload, match="entry 0: an unused entry has a value"):
        decode_level(data, FLOAT, LEVEL)


def votes_or_refusal(data: bytes | bytearray, results) -> Votes | str:
    try:
        return decode_level(data, results, LEVEL)
    except BadPayload as error:
        return str(error)


def check_sound(votes: Votes, results) -> None:
    """Check the properties of votes on which later code relies."""
    coefficients = sum(group.blocks * group.block for group in level_layout(results, LEVEL).groups)
    places = votes.positions.tolist()
    assert len(set(places)) == len(places) == len(votes.values)
    assert all(0 <= place < coefficients for place in places)
    if results.values is Values.SIGN:
        assert votes.values.dtype == torch.int8
        assert set(votes.values.tolist()) <= {-1, 1}
    else:
        assert votes.values.dtype == torch.float32
        assert bool((votes.values.isfinite() & (votes.values != 0)).all())


@given(data=st.data(), one_bit=st.booleans())
def test_flipped_bit_is_refused_or_gives_other_votes(data, one_bit: bool) -> None:
    results = BIT if one_bit else FLOAT
    valid = payload(results, zeros=data.draw(st.sampled_from([0.0, 0.97, 1.0])))
    before = decode_level(bytes(valid), results, LEVEL)
    for bit in data.draw(st.sets(st.integers(0, len(valid) * 8 - 1), min_size=1, max_size=4)):
        valid[bit // 8] ^= 1 << bit % 8
    votes = votes_or_refusal(valid, results)
    if isinstance(votes, str):
        assert votes.startswith("level 1")
        return
    check_sound(votes, results)
    assert (
        votes.positions.tolist() != before.positions.tolist()
        or votes.values.tolist() != before.values.tolist()
    )


@given(data=st.data(), one_bit=st.booleans())
def test_spliced_payload_is_refused_or_gives_valid_votes(data, one_bit: bool) -> None:
    results = BIT if one_bit else FLOAT
    valid = payload(results)
    start = data.draw(st.integers(0, len(valid) - 1))
    garbage = data.draw(st.binary(min_size=1, max_size=64))[: len(valid) - start]
    valid[start : start + len(garbage)] = garbage
    votes = votes_or_refusal(valid, results)
    if isinstance(votes, str):
        assert "\n" not in votes
    else:
        check_sound(votes, results)


@given(garbage=st.binary(max_size=4000))
def test_random_bytes_are_refused(garbage: bytes) -> None:
    with pytest.raises(BadPayload):
        decode_level(garbage, BIT, LEVEL)
