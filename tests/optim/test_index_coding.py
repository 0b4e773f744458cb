"""Index codes: one code per set, refusal of all other bits, and sizes near the minimum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from aftermath.optim import index_coding
from aftermath.optim.bitstrings import pack_bits, unpack_bits
from aftermath.optim.blocks import UNUSED
from aftermath.optim.index_coding import compact, decode_indices, encode_indices
from aftermath.optim.index_sizes import bits_of

SMALL = [(size, most) for size in range(1, 9) for most in range(1, size + 1)]


def rows_of(sets: Iterable[Sequence[int]], most: int) -> Tensor:
    return torch.tensor([[*one, *[UNUSED] * (most - len(one))] for one in sets], dtype=torch.int32)


def bits_of_numbers(numbers: Sequence[int], bits: int) -> Tensor:
    return torch.tensor(
        [[number >> place & 1 for place in range(bits)] for number in numbers], dtype=torch.uint8
    )


def numbers_of(bits: Tensor) -> list[int]:
    return [sum(bit << place for place, bit in enumerate(row)) for row in bits.tolist()]


def test_code_of_a_known_set_is_low_bits_then_bitmap() -> None:
    """4 of 64 indices have three low bits each: 12 bits, then a bitmap of 8 high parts and 4
    entries.
    """
    bits = encode_indices(rows_of([[2, 9, 63]], 4), 64)[0].tolist()
    assert len(bits) == bits_of(64, 4) == 12 + 12
    assert bits[:12] == [0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0]
    assert [place for place, bit in enumerate(bits[12:]) if bit] == [0 + 0, 1 + 1, 7 + 2]


def test_every_set_has_one_code_and_other_bits_are_refused() -> None:
    for size, most in SMALL:
        sets = rows_of(
            (one for n in range(most + 1) for one in itertools.combinations(range(size), n)), most
        )
        bits = encode_indices(sets, size)
        assert bits.shape == (len(sets), bits_of(size, most)), (size, most)
        numbers = numbers_of(bits)
        assert len(set(numbers)) == len(sets), (size, most)
        decoded, wrong = decode_indices(
            bits_of_numbers(range(1 << bits_of(size, most)), bits_of(size, most)), size, most
        )
        assert {*torch.nonzero(~wrong).flatten().tolist()} == {*numbers}, (size, most)
        assert torch.equal(decoded[numbers], sets), (size, most)


@st.composite
def some_sets(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    size = draw(st.integers(1, 700))
    most = draw(st.integers(1, min(size, 60)))
    one = st.sets(st.integers(0, size - 1), max_size=most).map(sorted)
    ends = [[], list(range(most)), list(range(size - most, size)), [size - 1], [0]]
    return size, most, draw(st.lists(one | st.sampled_from(ends), min_size=1, max_size=8))


@given(some_sets())
def test_encoded_sets_decode_to_themselves(case: tuple[int, int, list[list[int]]]) -> None:
    size, most, sets = case
    rows = rows_of(sets, most)
    decoded, wrong = decode_indices(encode_indices(rows, size), size, most)
    assert not wrong.any()
    assert torch.equal(decoded, rows)


@given(st.integers(1, 700), st.integers(1, 60), st.data())
def test_accepted_index_bits_reencode_unchanged(size: int, most: int, data: st.DataObject) -> None:
    most = min(size, most)
    length = bits_of(size, most)
    hostile = st.integers(0, (1 << length) - 1) | st.integers(0, length).map(
        lambda low: (1 << length) - (1 << low)
    )
    bits = bits_of_numbers(data.draw(st.lists(hostile, min_size=1, max_size=8)), length)
    decoded, wrong = decode_indices(bits, size, most)
    assert torch.equal(encode_indices(decoded[~wrong], size), bits[~wrong])


@pytest.mark.parametrize(
    ("size", "most"), [(4096, 8), (4096, 64), (4096, 3000), (1000, 400), (65_025, 3)]
)
def test_large_blocks_round_trip_and_noise_is_refused(size: int, most: int) -> None:
    draws = torch.Generator().manual_seed(size + most)
    sets = [
        torch.randperm(size, generator=draws)[:n].sort().values.tolist()
        for n in (most, most // 2, 1, 0)
    ]
    rows = rows_of([*sets, range(most), range(size - most, size)], most)
    bits = encode_indices(rows, size)
    decoded, wrong = decode_indices(bits, size, most)
    assert not wrong.any()
    assert torch.equal(decoded, rows)
    noise = torch.randint(0, 2, (200, bits.shape[1]), generator=draws, dtype=torch.uint8)
    noise[:50, : bits.shape[1] // 2] = 1
    decoded, wrong = decode_indices(noise, size, most)
    assert wrong.any()
    assert torch.equal(encode_indices(decoded[~wrong], size), noise[~wrong])


def test_blocks_in_several_batches_decode_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.stack([torch.randperm(20)[:4].sort().values for _ in range(300)]).int()
    bits = encode_indices(rows, 20)
    monkeypatch.setitem(index_coding._ELEMENTS_AT_ONCE, "cpu", 70 * bits_of(20, 4))
    assert torch.equal(encode_indices(rows, 20), bits)
    bits[250] = 1
    decoded, wrong = decode_indices(bits, 20, 4)
    assert torch.nonzero(wrong).flatten().tolist() == [250]
    assert torch.equal(decoded[~wrong], rows[~wrong])


@given(st.integers(1, 5000), st.data())
def test_code_size_is_near_the_minimum(size: int, data: st.DataObject) -> None:
    """The minimum is log2 of the number of sets. Elias-Fano adds at most 0.8 bits per member."""
    most = data.draw(st.integers(1, size))
    binomials = [
        math.lgamma(size + 1) - math.lgamma(n + 1) - math.lgamma(size - n + 1)
        for n in range(most + 1)
    ]
    least = max(binomials) / math.log(2)
    assert least <= bits_of(size, most) <= min(least + 0.8 * most + math.log2(size) + 2, size)


def test_compact_moves_used_values_to_the_front() -> None:
    values = torch.tensor([[5, 0, 7, 9], [0, 0, 0, 0], [1, 2, 3, 4]])
    assert compact(values, values != 0, 3).tolist() == [[5, 7, 9], [0, 0, 0], [1, 2, 3]]


@given(st.lists(st.booleans(), max_size=70))
def test_packed_bits_are_those_of_python_integers(bits: list[bool]) -> None:
    packed = pack_bits(torch.tensor(bits, dtype=torch.uint8))
    number = sum(bit << place for place, bit in enumerate(bits))
    assert packed.numpy().tobytes() == number.to_bytes(-(-len(bits) // 8), "little")
    assert unpack_bits(packed)[: len(bits)].tolist() == bits
