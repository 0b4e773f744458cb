"""Blocks of digits: their encoding in Python integers, its uniqueness, and whole results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.optim import digits, index_coding
from aftermath.optim.blocks import UNUSED
from aftermath.optim.codec import BadPayload, decode_level, encode_level
from aftermath.optim.lattice import SMALLEST
from aftermath.optim.layout import level_layout
from aftermath.optim.result_format import ResultFormat, Transform, Values
from optim.optim_oracle import entry_bases, toy_inner, toy_schema

KINDS = {1: (0, 1, -1), 2: (0, 1, -1, 3, -3)}
NUMBERS = {1: (5, 8), 2: (3, 7)}
BITS = pytest.mark.parametrize("bits", [1, 2])
MIXED = toy_inner(topk=4, topk_embeddings=64).results
"""The smallest tier's results: the embedding's blocks keep all numbers, the others four."""
MOST = toy_inner(topk=58, topk_embeddings=58).results
"""Blocks of 64 that lack a few."""


def by_hand(row: list[int], bits: int) -> bytes:
    """Encode digits as one large integer."""
    together, width = NUMBERS[bits]
    total = 0
    for first in range(0, len(row), together):
        own = [KINDS[bits].index(digit) for digit in row[first : first + together]]
        total |= (
            sum(code * len(KINDS[bits]) ** at for at, code in enumerate(own))
            << first // together * width
        )
    return total.to_bytes(digits.size_of(len(row), bits), "little")


@BITS
@given(st.data())
def test_digits_round_trip_equals_python_integers(bits: int, data: st.DataObject) -> None:
    row = data.draw(st.lists(st.sampled_from(KINDS[bits]), min_size=1, max_size=200))
    written = digits.to_bytes(np.array(row, np.int8), bits)
    assert written == by_hand(row, bits)
    back, wrong = digits.from_bytes(np.frombuffer(written, np.uint8), len(row), bits)
    assert (back.tolist(), wrong) == (row, None)


@BITS
@given(st.integers(1, 60), st.data())
def test_accepted_digit_bytes_reencode_unchanged(
    bits: int, count: int, data: st.DataObject
) -> None:
    """Accepted bytes are the encoding of their digits, so each row of digits has one encoding."""
    size = digits.size_of(count, bits)
    given_ = data.draw(st.binary(min_size=size, max_size=size))
    decoded, wrong = digits.from_bytes(np.frombuffer(given_, np.uint8), count, bits)
    if wrong is None:
        assert digits.to_bytes(decoded, bits) == given_
    else:
        together, width = NUMBERS[bits]
        numbers = [
            int.from_bytes(given_, "little") >> at * width & (1 << width) - 1
            for at in range(-(-count // together))
        ]
        beyond = int.from_bytes(given_, "little") >> len(numbers) * width
        spare = len(KINDS[bits]) ** (count - together * (len(numbers) - 1))
        assert beyond or max(numbers) >= len(KINDS[bits]) ** together or numbers[-1] >= spare


def test_digits_after_the_last_one_are_refused() -> None:
    """Four digits of two bits take two codes of 7 bits, and the second code has room for two more
    digits.
    """
    for number in (5 << 7, 25 << 7, 1 << 14):
        _, wrong = digits.from_bytes(np.frombuffer(number.to_bytes(2, "little"), np.uint8), 4, 2)
        assert wrong is not None, number
    assert digits.from_bytes(np.frombuffer((4 << 7).to_bytes(2, "little"), np.uint8), 4, 2)[
        0
    ].tolist() == [0, 0, 0, -3]


def result(results: ResultFormat, level: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices and values of a level's entries. Blocks are full, partly full or empty."""
    draw = np.random.default_rng(seed)
    indices = []
    values = []
    for number, cut in enumerate(one for one in results.of_level(level) for _ in range(one.count)):
        count = (
            0 if number == 1 else cut.topk if number % 2 else int(draw.integers(0, cut.topk + 1))
        )
        own = np.full(cut.topk, UNUSED, np.uint16)
        own[:count] = np.sort(draw.permutation(cut.size)[:count])
        size = 2.0 ** int(draw.integers(-40, 4)) * draw.choice((-1, 1), cut.topk)
        size *= draw.choice((1, 3), cut.topk) if results.values is Values.TWO_BIT else 1
        indices.append(own)
        values.append(np.where(own == UNUSED, 0, size).astype(np.float32))
    return np.concatenate(indices), np.concatenate(values)


FORMATS = {
    "some": MIXED,
    "most": MOST,
    "all": toy_inner(topk=64, topk_embeddings=64).results,
    "one bit": toy_inner(topk=64, topk_embeddings=64, bits=1).results,
    "signs": toy_schema(topk=64, topk_embeddings=4).results,
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("level", [0, 2])
def test_digit_payload_round_trip_keeps_votes(name: str, level: int) -> None:
    results = FORMATS[name]
    layout = level_layout(results, level)
    assert any(group.digits for group in layout.groups) or (name, level) == ("some", 0)
    indices, values = result(results, level, 5)
    if results.values is Values.SIGN:
        values = np.sign(values)
    data = encode_level(results, level, indices, values)
    assert len(data) == results.payload_bytes(level)
    votes = decode_level(data, results, level)
    used = indices != UNUSED
    assert votes.positions.tolist() == (entry_bases(layout) + indices)[used].tolist()
    numbers = (
        votes.values.numpy()
        if results.values is Values.SIGN
        else votes.multiples().numpy() * SMALLEST
    )
    assert numbers.tolist() == values[used].tolist()


@pytest.mark.parametrize("name", FORMATS)
def test_changed_payload_is_refused_or_gives_other_votes(name: str) -> None:
    results = FORMATS[name]
    draw = np.random.default_rng(1)
    indices, values = result(results, 2, 7)
    data = encode_level(
        results, 2, indices, np.sign(values) if results.values is Values.SIGN else values
    )
    before = plain_votes(decode_level(data, results, 2))
    refused = 0
    for _ in range(100):
        changed = bytearray(data)
        for bit in draw.integers(0, 8 * len(data), int(draw.integers(1, 4))):
            changed[bit // 8] ^= 1 << bit % 8
        try:
            assert (
                bytes(changed) == data
                or plain_votes(decode_level(bytes(changed), results, 2)) != before
            )
        except BadPayload:
            refused += 1
    assert 0 < refused < 100


def plain_votes(votes: object) -> tuple[list[int], list[int], list[int] | None]:
    shifts = votes.shifts.tolist() if votes.shifts is not None else None  # type: ignore[attr-defined]
    return votes.positions.tolist(), votes.values.tolist(), shifts  # type: ignore[attr-defined]


def test_block_above_topk_is_refused_by_name() -> None:
    """All digits of a block of 64 are set, but the block keeps at most 58."""
    for cut in MOST.of_level(0)[:1]:
        data = bytearray(MOST.payload_bytes(0))
        data[-MOST.digit_bytes(0) :] = digits.to_bytes(
            np.ones(sum(one.count * one.size for one in MOST.of_level(0)), np.int8), 2
        )
        with pytest.raises(
            BadPayload,
            match=f"level 0, {cut.segment.name}, block 0: the indices are not a set of at most 58 of 64",
        ):
            decode_level(bytes(data), MOST, 0)
    data[-MOST.digit_bytes(0)] = 0x7F
    with pytest.raises(BadPayload, match="level 0: the code of digit 0 is not valid"):
        decode_level(bytes(data), MOST, 0)


def test_blocks_use_digits_only_when_shorter() -> None:
    for topk in (1, 8, 64, 2048, 2600, 2800, 4096):
        for values in (Values.SIGN, Values.ONE_BIT, Values.TWO_BIT, Values.FLOAT):
            results = ResultFormat((), 1, Transform.NONE, values)
            apart = index_coding.bits_of(4096, topk) + values.bits * topk
            together = 4096 * 8 / 5 if values.bits == 1 else 4096 * 7 / 3
            assert results.as_digits(4096, topk) == (
                values is not Values.FLOAT and together < apart
            )
