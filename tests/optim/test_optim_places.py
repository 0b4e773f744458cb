"""Places as bits: a number for every set and a set for every number, against Python's integers; and
the least bits.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aftermath.optim import elias_fano, places, ranks
from aftermath.optim.blocks import UNUSED

SMALL = [(n, k) for n in range(1, 9) for k in range(1, n + 1)]
CODES = pytest.mark.parametrize("code", [ranks, elias_fano], ids=["ranks", "elias-fano"])


def rows_of(sets: Iterable[Sequence[int]], most: int) -> np.ndarray:
    return np.array([[*one, *[UNUSED] * (most - len(one))] for one in sets], np.uint16)


def bits_of_numbers(numbers: Sequence[int], bits: int) -> np.ndarray:
    octets = [np.frombuffer(number.to_bytes(-(-bits // 8), "little"), np.uint8) for number in numbers]
    return np.stack([np.unpackbits(own, count=bits, bitorder="little") for own in octets])


def numbers_of(bits: np.ndarray) -> list[int]:
    return [int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little") for row in bits]


def count(n: int, k: int) -> int:
    """How many sets of at most k of n places there are."""
    return counts(n)[k] if k >= 0 else 0


@cache
def counts(n: int) -> list[int]:
    found, binomial = [1], 1
    for members in range(1, n + 1):
        binomial = binomial * (n - members + 1) // members
        found.append(found[-1] + binomial)
    return found


@cache
def weights(n: int, k: int) -> list[list[int]]:
    """W(p, i) of `optim.ranks` by its definition, [i][p]; and before them how many sets are
    smaller, by members.
    """

    def up(number: int) -> int:
        far = max(number.bit_length() - 32, 0)
        return -(-number >> far) << far

    rows = [[1] * (n + 1)]
    for _ in range(k):
        row = [0]
        for below in rows[-1][:-1]:
            row.append(up(row[-1] + below))
        rows.append(row)
    smaller = [0]
    for row in rows[:-1]:
        smaller.append(up(smaller[-1] + row[-1]))
    return [smaller, *rows[1:]]


def rank(members: Sequence[int], n: int, k: int) -> int:
    table = weights(n, k)
    return table[0][len(members)] + sum(table[i][place] for i, place in enumerate(members, 1))


def test_ranks_are_the_numbers_below_the_count_of_sets() -> None:
    for n, k in SMALL:
        sets = [one for members in range(k + 1) for one in itertools.combinations(range(n), members)]
        numbers = numbers_of(ranks.to_bits(rows_of(sets, k), n))
        assert sorted(numbers) == list(range(count(n, k))), (n, k)
        for one, number in zip(sets, numbers, strict=True):
            expected = count(n, len(one) - 1) + sum(math.comb(place, i) for i, place in enumerate(one, 1))
            assert number == expected, (n, k, one)


@CODES
def test_every_set_has_one_encoding_and_all_else_is_refused(code) -> None:
    for n, k in SMALL:
        sets = rows_of((one for m in range(k + 1) for one in itertools.combinations(range(n), m)), k)
        bits = code.to_bits(sets, n)
        assert bits.shape == (len(sets), code.bits_of(n, k)), (n, k)
        numbers = numbers_of(bits)
        assert len(set(numbers)) == len(sets), (n, k)
        every = range(1 << code.bits_of(n, k))
        back, wrong = code.from_bits(bits_of_numbers(every, code.bits_of(n, k)), n, k)
        assert set(np.flatnonzero(~wrong)) == set(numbers), (n, k)
        assert (back[numbers] == sets).all(), (n, k)


@st.composite
def some_sets(draw: st.DrawFn) -> tuple[int, int, list[list[int]]]:
    n = draw(st.integers(1, 700))
    k = draw(st.integers(1, min(n, 60)))
    one = st.sets(st.integers(0, n - 1), max_size=k).map(sorted)
    ends = [[], list(range(k)), list(range(n - k, n)), [n - 1], [0]]
    return n, k, draw(st.lists(one | st.sampled_from(ends), min_size=1, max_size=8))


@given(some_sets())
def test_ranks_are_those_of_python_integers(given: tuple[int, int, list[list[int]]]) -> None:
    n, k, sets = given
    bits = ranks.to_bits(rows_of(sets, k), n)
    assert numbers_of(bits) == [rank(one, n, k) for one in sets]
    assert bits.shape[1] == ranks.bits_of(n, k)


@CODES
@given(some_sets())
def test_round_trip(code, given: tuple[int, int, list[list[int]]]) -> None:
    n, k, sets = given
    rows = rows_of(sets, k)
    back, wrong = code.from_bits(code.to_bits(rows, n), n, k)
    assert not wrong.any()
    assert (back == rows).all()


@CODES
@given(st.integers(1, 700), st.integers(1, 60), st.data())
def test_bits_that_are_taken_come_back(code, n: int, k: int, data: st.DataObject) -> None:
    """Whatever is not refused is the encoding of its set, so there is no second one."""
    k = min(n, k)
    size = code.bits_of(n, k)
    hostile = st.integers(0, (1 << size) - 1) | st.integers(0, size).map(lambda low: (1 << size) - (1 << low))
    numbers = data.draw(st.lists(hostile, min_size=1, max_size=8))
    bits = bits_of_numbers(numbers, size)
    back, wrong = code.from_bits(bits, n, k)
    assert (code.to_bits(back[~wrong], n) == bits[~wrong]).all()


@given(st.integers(1, 700), st.integers(1, 60))
def test_numbers_after_the_last_rank_are_refused(n: int, k: int) -> None:
    k = min(n, k)
    last, size = rank(range(n - k, n), n, k), ranks.bits_of(n, k)
    numbers = [last, *sorted({min(last + more, (1 << size) - 1) for more in (1, 2, 1 << 40)} - {last})]
    _, wrong = ranks.from_bits(bits_of_numbers(numbers, size), n, k)
    assert wrong.tolist() == [False] + [True] * (len(numbers) - 1)


LARGE = [(4096, 8), (4096, 64), (1000, 400), (20_000, 12)]
SLOW = [pytest.param(*one, marks=pytest.mark.slow) for one in ((4096, 300), (65_025, 3))]


@pytest.mark.parametrize(("n", "k"), [*LARGE, *SLOW])
def test_large_blocks(n: int, k: int) -> None:
    """Round trips and, where Python's integers are quick, the numbers themselves; full, part full
    and empty.
    """
    draw = np.random.default_rng(n + k)
    sets = [sorted(draw.choice(n, size, replace=False).tolist()) for size in (k, k, k, k // 2, 1, 0)]
    sets += [list(range(k)), list(range(n - k, n))]
    rows = rows_of(sets, k)
    bits = places.to_bits(rows, n)
    back, wrong = places.from_bits(bits, n, k)
    assert not wrong.any()
    assert (back == rows).all()
    if n * k < 1 << 19:
        assert numbers_of(bits) == [rank(one, n, k) for one in sets]
    noise = draw.integers(0, 2, (400, bits.shape[1]), dtype=np.uint8)
    noise[:100, : bits.shape[1] // 2] = 1
    noise[100:200, bits.shape[1] // 2 :] = 1
    back, wrong = places.from_bits(noise, n, k)
    assert wrong.any()
    assert (places.to_bits(back[~wrong], n) == noise[~wrong]).all()


def test_more_blocks_than_are_done_at_once() -> None:
    draw = np.random.default_rng(3)
    rows = np.sort(draw.permuted(np.tile(np.arange(20), (10_000, 1)), axis=1)[:, :4]).astype(np.uint16)
    bits = places.to_bits(rows, 20)
    bits[9_000] = 1
    back, wrong = places.from_bits(bits, 20, 4)
    assert np.flatnonzero(wrong).tolist() == [9_000]
    assert (back[~wrong] == rows[~wrong]).all()


def test_no_bits_take_much_longer_than_those_of_random_sets() -> None:
    """In every block the limbs end, or a borrow begins, at another i. Each line is a pass over all
    blocks.
    """
    n, k, blocks = 4096, 1024, 256
    draw, one = np.random.default_rng(5), np.arange(k)
    random = np.sort(draw.permuted(np.tile(np.arange(n, dtype=np.uint16), (blocks, 1)), axis=1)[:, :k])
    falling = np.where(one < 4 * np.arange(blocks)[:, None], one, one + n - k).astype(np.uint16)
    size, table = places.bits_of(n, k), ranks._weights(n, k)
    rest = [number_of(table[0, k])]
    for i in range(k, 0, -1):
        rest.append(rest[-1] + number_of(table[i, n]))
    borrowing = [rest[4 * block] | 1 << size - 1 for block in range(blocks)]  # no set's
    allowed = 2 * lines_of(places.to_bits(random, n), n, k)
    assert lines_of(places.to_bits(falling, n), n, k) < allowed
    assert lines_of(bits_of_numbers(borrowing, size), n, k) < allowed


def number_of(weight: int) -> int:
    """What a weight of `optim.ranks` stands for."""
    length, significand = int(weight) >> 32, int(weight) & 0xFFFFFFFF
    return significand << length - 32 if length > 32 else significand >> 32 - length


def lines_of(bits: np.ndarray, n: int, k: int) -> int:
    """How many lines of `optim.ranks` a decoding executes."""
    executed = 0

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal executed
        executed += event == "line"
        return trace if frame.f_code.co_filename == ranks.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        places.from_bits(bits, n, k)
    finally:
        sys.settrace(before)
    return executed


def test_blocks_of_4096_take_the_least_bits() -> None:
    """Ranks take the fewest bits for the number of sets; bitmaps one per place, if half or more are
    kept.
    """
    for k in (1, 2, 8, 16, 32, 64, 100, 256, 512, 1000, 1500, 2000, 2046, 2047, 2048, 3000, 4095, 4096):
        least = (count(4096, k) - 1).bit_length()
        assert places.bits_of(4096, k) == (least if k < 2047 else 4096), k
        assert least >= 4095 or k < 2047, k


@given(st.integers(1, 1000), st.data())
def test_other_blocks_take_one_bit_more_at_most(n: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, n))
    least = (count(n, k) - 1).bit_length()
    assert least <= places.bits_of(n, k) <= min(least + 1, n)


@pytest.mark.parametrize("k", [129, 512, 2048, 8192, 32_512, 65_025])
def test_blocks_with_large_tables_take_a_quarter_more_at_most(k: int) -> None:
    bits = places.bits_of(65_025, k)
    assert bits == elias_fano.bits_of(65_025, k) <= 65_025
    binomial = [math.lgamma(65_026) - math.lgamma(m + 1) - math.lgamma(65_026 - m) for m in range(k + 1)]
    assert bits <= 1.25 * max(binomial) / math.log(2)
