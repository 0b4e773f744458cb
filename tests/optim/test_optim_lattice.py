"""Lattice values: the best exponent, their bytes, one encoding per result, and refusal of all
others.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.errors import SchemaError
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import BadPayload, decode_level, encode_level
from aftermath.optim.lattice import LEAST, MOST, SMALLEST, quantise
from aftermath.optim.layout import level_layout
from aftermath.optim.level_votes import Votes
from aftermath.optim.result_format import ResultFormat
from aftermath.optim.transform import strongest
from optim.optim_oracle import entry_bases, toy_inner

FORMATS = {bits: toy_inner(bits=bits).results for bits in (1, 2)}
LEVEL = 1

values_of_a_block = st.lists(
    st.one_of(
        st.floats(2.0**-45, 2.0**7, width=32),
        st.floats(0.5, 2.0, width=32),
        st.sampled_from([SMALLEST, 3.0, 1.0, 1.5, 24.0, 1e30]),
    ).filter(lambda value: value >= SMALLEST),
    min_size=1,
    max_size=12,
)


def error_of(block: list[float], sent: list[float]) -> Fraction:
    return sum(
        (Fraction(value) - Fraction(near)) ** 2 for value, near in zip(block, sent, strict=True)
    )


def best_error(block: list[float], bits: int) -> Fraction:
    """Return the least squared error over all exponents, in fractions."""
    multiples = (1, 3) if bits == 2 else (1,)
    return min(
        sum(
            min((Fraction(value) - m * Fraction(2) ** exponent) ** 2 for m in multiples)
            for value in block
        )
        for exponent in range(LEAST, MOST + 1)
    )


@given(values_of_a_block, st.sampled_from([1, 2]), st.data())
def test_quantise_picks_the_exponent_of_least_error(
    block: list[float], bits: int, data: st.DataObject
) -> None:
    signs = data.draw(
        st.lists(st.sampled_from([-1.0, 1.0]), min_size=len(block), max_size=len(block))
    )
    row = torch.tensor([[value * sign for value, sign in zip(block, signs, strict=True)] + [0.0]])
    (sent,) = quantise(row, bits).tolist()
    assert sent[-1] == 0
    assert [value > 0 for value in sent[:-1]] == [sign > 0 for sign in signs]
    error = error_of(block, [abs(value) for value in sent[:-1]])
    best = best_error(block, bits)
    assert error <= best * (1 + Fraction(1, 10**5))
    parts = {np.frexp(abs(value)) for value in sent[:-1]}
    units = {exponent - (2 if mantissa == 0.75 else 1) for mantissa, exponent in parts}
    assert len(units) == 1
    assert LEAST <= units.pop() <= MOST
    assert {mantissa for mantissa, _ in parts} <= ({0.5, 0.75} if bits == 2 else {0.5})


def test_quantise_picks_the_lower_of_two_equal_exponents() -> None:
    assert quantise(torch.tensor([[1.5, -1.5]]), 1).tolist() == [[1.0, -1.0]]
    assert quantise(torch.tensor([[3.0, -3.0]]), 2).tolist() == [[3.0, -3.0]]


def test_value_above_the_lattice_becomes_its_largest() -> None:
    rows = torch.tensor([[1e30, -1e30], [SMALLEST, 0.0], [0.0, 0.0], [0.25, -0.75]])
    largest = 3 * 2.0**MOST
    assert quantise(rows, 2).tolist() == [
        [largest, -largest],
        [SMALLEST, 0.0],
        [0.0, 0.0],
        [0.25, -0.75],
    ]


def test_sums_of_the_most_peers_stay_exact() -> None:
    assert 256 * 3 * 2 ** (MOST - LEAST) < 2**53


# --- the bytes ------------------------------------------------------------------------------------


def result(
    results: ResultFormat, seed: int = 0, zeros: float = 0.97
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and lattice values of a level's entries, many of them unused. Block scales
    differ a lot.
    """
    generator = torch.Generator().manual_seed(seed)
    layout = level_layout(results, LEVEL)
    pairs = []
    for group in layout.groups:
        rows = torch.randn(group.blocks, group.block, generator=generator)
        rows[torch.rand(rows.shape, generator=generator) < zeros] = 0
        rows *= 2.0 ** torch.randint(-44, 6, (group.blocks, 1), generator=generator)
        indices, values = strongest(rows, group.topk, SMALLEST)
        pairs.append((indices, quantise(values, results.values.lattice_bits)))
    indices, values = (layout.canonical([pair[i] for pair in pairs]).numpy() for i in range(2))
    return indices.astype(np.uint16), values


def payload(bits: int, **changes: float) -> bytearray:
    return bytearray(encode_level(FORMATS[bits], LEVEL, *result(FORMATS[bits], **changes)))


def encoded_again(votes: Votes, results: ResultFormat) -> bytes:
    """Return the payload of decoded votes."""
    layout = level_layout(results, LEVEL)
    entries = results.entries(LEVEL)
    indices = np.full(entries, UNUSED, np.uint16)
    values = np.zeros(entries, np.float32)
    bases = entry_bases(layout)
    starts = np.flatnonzero(np.diff(bases, prepend=-1))
    at = dict(zip(votes.positions.tolist(), votes.multiples().tolist(), strict=True))
    for first, last in zip(starts, [*starts[1:], entries], strict=True):
        base = int(bases[first])
        block = next(g.block for g in layout.groups if g.base <= base < g.base + g.blocks * g.block)
        own = sorted(position for position in at if base <= position < base + block)
        for entry, position in zip(range(first, last), own, strict=False):
            indices[entry] = position - base
            values[entry] = at[position] * SMALLEST
    return encode_level(results, LEVEL, indices, values)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("zeros", [0.0, 0.97, 1.0])
def test_lattice_payload_round_trip_keeps_votes(bits: int, zeros: float) -> None:
    results = FORMATS[bits]
    indices, values = result(results, seed=3, zeros=zeros)
    data = encode_level(results, LEVEL, indices, values)
    assert len(data) == results.payload_bytes(LEVEL)
    votes = decode_level(memoryview(data), results, LEVEL)
    used = indices != UNUSED
    assert used.any() == (zeros < 1)
    assert (
        votes.positions.tolist()
        == (entry_bases(level_layout(results, LEVEL)) + indices)[used].tolist()
    )
    assert votes.kind == votes.multiples().dtype == torch.int64
    assert (votes.multiples().double() * SMALLEST).tolist() == values[used].tolist()
    assert encoded_again(votes, results) == data


def test_lattice_payload_has_exponents_before_signs() -> None:
    """Indices, then six bits per block for its exponent (-40 is 1, no votes is 0), then signs and
    sizes, lowest bit first.
    """
    results = toy_inner(hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2).results
    indices = np.full(12, UNUSED, np.uint16)
    values = np.zeros(12, np.float32)
    indices[:3] = (2, 9, 63)
    values[:3] = (-0.75, 0.25, -0.25)
    indices[8] = 17
    values[8] = 8.0
    data = encode_level(results, 0, indices, values)
    first = sum(1 << bit for bit in (1, 3, 6, 7, 8, 12, 14, 21))  # as in test_optim_codec
    third = 1 << 0 | 1 << 14
    places = (first | third << 48).to_bytes(9, "little")
    with pytest.raises(ValueError, match="lattice"):
        encode_level(results, 0, indices, values * 8)
    exponents = (39 | 0 << 6 | 44 << 12).to_bytes(3, "little")
    assert data == places + exponents + bytes([0b101, 0]) + bytes([0b1, 0])


@pytest.mark.parametrize(
    "values",
    [
        (1.25, 1.25),
        (0.5, 0.25),
        (1.5, 3.0),
        (2.0**-41, 2.0**-41),
        (2.0**5, 2.0**5),
        (np.inf, np.inf),
    ],
    ids=str,
)
def test_encoding_values_off_the_lattice_is_refused(values: tuple[float, float]) -> None:
    results = FORMATS[2]
    indices, all_values = result(results, zeros=1.0)
    indices[:2] = (0, 1)
    all_values[:2] = values
    with pytest.raises(ValueError, match="not on the lattice of its block"):
        encode_level(results, LEVEL, indices, all_values)


def test_triple_value_is_refused_with_one_bit() -> None:
    results = FORMATS[1]
    indices, values = result(results, zeros=1.0)
    indices[:2] = (0, 1)
    values[:2] = (0.5, 1.5)
    with pytest.raises(ValueError, match="not on the lattice"):
        encode_level(results, LEVEL, indices, values)


def test_lattice_payload_sizes_follow_from_the_format() -> None:
    one = FORMATS[1]
    two = FORMATS[2]
    entries = two.entries(LEVEL)
    blocks = sum(cut.count for cut in two.of_level(LEVEL))
    assert one.value_bytes(LEVEL) == -(-6 * blocks // 8) + -(-entries // 8)
    assert two.value_bytes(LEVEL) == -(-6 * blocks // 8) + 2 * -(-entries // 8)
    with pytest.raises(SchemaError, match="level 3"):
        decode_level(b"", two, 3)


@pytest.mark.parametrize("bits", [1, 2])
@pytest.mark.parametrize("more", [-1, 1, 7])
def test_lattice_payload_of_wrong_size_is_refused(bits: int, more: int) -> None:
    data = bytes(payload(bits))
    wrong = data[:more] if more < 0 else data + bytes(more)
    with pytest.raises(BadPayload, match=f"level 1 must have {len(data)} bytes, not {len(wrong)}"):
        decode_level(wrong, FORMATS[bits], LEVEL)


@pytest.mark.parametrize("code", [0, MOST - LEAST + 2, 63])
def test_exponent_off_the_lattice_is_refused(code: int) -> None:
    data = payload(2, zeros=0.0)
    results = FORMATS[2]
    place = results.index_bytes(LEVEL)
    codes = int.from_bytes(data[place : place + 2], "little") & ~(63 << 6) | code << 6
    data[place : place + 2] = codes.to_bytes(2, "little")
    with pytest.raises(BadPayload, match="block 1: the exponent must be from -40 to 3"):
        decode_level(data, results, LEVEL)


def test_exponent_of_a_block_without_votes_is_refused() -> None:
    data = payload(1, zeros=1.0)
    results = FORMATS[1]
    data[results.index_bytes(LEVEL)] = 1
    with pytest.raises(BadPayload, match="block 0: a block without votes has an exponent"):
        decode_level(data, results, LEVEL)


def test_bit_after_the_last_exponent_is_refused() -> None:
    """The exponents of three blocks take 18 bits."""
    results = toy_inner(
        topk=3, hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    data = bytearray(
        encode_level(results, 0, np.full(9, UNUSED, np.uint16), np.zeros(9, np.float32))
    )
    data[results.index_bytes(0) + 2] |= 1 << 2
    with pytest.raises(BadPayload, match="level 0: a bit after the last exponent is set"):
        decode_level(data, results, 0)


@pytest.mark.parametrize("plane", ["sign", "size"])
def test_stray_sign_and_size_bits_are_refused(plane: str) -> None:
    results = toy_inner(
        topk=3, hidden_size=8, intermediate_size=16, tiers=2, num_attention_heads=2
    ).results
    data = bytearray(
        encode_level(results, 0, np.full(9, UNUSED, np.uint16), np.zeros(9, np.float32))
    )
    place = results.index_bytes(0) + 3 + (2 if plane == "size" else 0)
    for bit, sentence in (
        (9, f"after the last {plane}"),
        (4, f"entry 4: the {plane} of an unused"),
    ):
        broken = bytearray(data)
        broken[place + bit // 8] |= 1 << bit % 8
        with pytest.raises(BadPayload, match=sentence):
            decode_level(broken, results, 0)


def votes_or_refusal(data: bytearray, results: ResultFormat) -> Votes | str:
    try:
        return decode_level(data, results, LEVEL)
    except BadPayload as error:
        return str(error)


@given(data=st.data(), bits=st.sampled_from([1, 2]))
def test_flipped_lattice_bit_is_refused_or_changes_votes(data: st.DataObject, bits: int) -> None:
    results = FORMATS[bits]
    valid = payload(bits, zeros=data.draw(st.sampled_from([0.0, 0.97, 1.0])))
    before = decode_level(bytes(valid), results, LEVEL)
    for bit in data.draw(st.sets(st.integers(0, len(valid) * 8 - 1), min_size=1, max_size=4)):
        valid[bit // 8] ^= 1 << bit % 8
    votes = votes_or_refusal(valid, results)
    if isinstance(votes, str):
        assert votes.startswith("level 1")
        return
    assert (
        votes.positions.tolist() != before.positions.tolist()
        or votes.multiples().tolist() != before.multiples().tolist()
    )
    assert len(set(votes.positions.tolist())) == len(votes.positions)
    multiples = {abs(value) // (abs(value) & -abs(value)) for value in votes.multiples().tolist()}
    assert multiples <= ({1, 3} if bits == 2 else {1})
    assert max(map(abs, votes.multiples().tolist()), default=0) <= 3 * 2 ** (MOST - LEAST)
    assert encoded_again(votes, results) == bytes(valid)
