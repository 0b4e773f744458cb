"""Test that every position of a batch has exactly one trainer and one sequence, in fair shares."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import assignment, bitmap
from aftermath.rules.run import REDO, Interval
from rules.builders import config, header, members, seat

U64 = st.integers(0, 2**64 - 1)
WEIGHTS = st.dictionaries(st.integers(0, 255), st.integers(1, 65535), min_size=1, max_size=256)


@given(U64, WEIGHTS, st.integers(0, 65535))
def test_shares_partition_batch_within_one_of_exact(
    seed: int, weights: dict[int, int], batch: int
) -> None:
    round_ = header(bitmap.from_seats(weights), seed=seed, batch=batch)
    table = members({index: seat(index, weight=weight) for index, weight in weights.items()})
    shares = assignment.assign(round_, table)
    cuts = [0, *chain.from_iterable(shares.values()), batch]
    assert all(before <= after for before, after in pairwise(cuts))
    assert sum(share.len for share in shares.values()) == batch
    total = sum(weights.values())
    for index, share in shares.items():
        assert abs(share.len - Fraction(batch * weights[index], total)) < 1


@given(U64, st.integers(1, 40), st.integers(1, 500))
def test_equal_weights_get_equal_shares(seed: int, clients: int, batch: int) -> None:
    round_ = header((1 << clients) - 1, seed=seed, batch=batch)
    table = members({index: seat(index, weight=7) for index in range(clients)})
    sizes = [share.len for share in assignment.assign(round_, table).values()]
    assert max(sizes) - min(sizes) <= 1


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.integers(0, 100),
    st.data(),
)
def test_all_shares_cover_redone_and_fresh_sequences(
    data_index: int, redo_index: int, weights: list[int], batch: int, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(1, max(batch, 1)), max_size=REDO)))
    again = [
        (first, stop) for first, stop in pairwise([0, *cuts]) if stop > first and stop <= batch
    ]
    redo = tuple(Interval(redo_index + 2 * first, stop - first) for first, stop in again)
    round_ = header(1, data_index=data_index, batch=batch, redo=redo)
    shares = assignment.cut(batch, weights)
    trained = [list(chain.from_iterable(assignment.sequences(round_, share))) for share in shares]
    fresh = range(data_index, data_index + batch - round_.redone)
    redone = [index for span in redo for index in range(span.start, span.stop)]
    assert list(chain.from_iterable(trained)) == [*redone, *fresh]
    for share in shares:
        ranges = assignment.sequences(round_, share)
        assert sum(map(len, ranges)) == share.len
        assert len(ranges) <= REDO + 1


def test_share_across_redo_border_has_two_ranges() -> None:
    round_ = header(1, data_index=1000, batch=10, redo=(Interval(40, 4),))
    assert assignment.sequences(round_, assignment.PositionInterval(2, 7)) == [
        range(42, 44),
        range(1000, 1003),
    ]
    assert assignment.sequences(round_, assignment.PositionInterval(5, 5)) == []


def test_drain_round_has_empty_shares() -> None:
    table = members({index: seat(index) for index in range(3)})
    assert all(
        share.len == 0 for share in assignment.assign(header(0b111, batch=0), table).values()
    )


def test_batch_grows_with_tokens_and_rounds_half_up() -> None:
    rules = config(
        global_batch_size_start=8,
        global_batch_size_end=11,
        global_batch_size_warmup_tokens=600,
        max_seq_len=100,
    )
    assert [assignment.batch_size(rules, index) for index in range(8)] == [
        8,
        9,
        9,
        10,
        10,
        11,
        11,
        11,
    ]


def test_batch_without_warm_up_has_final_size_at_once() -> None:
    rules = config(global_batch_size_start=2, global_batch_size_end=8, max_seq_len=64)
    assert assignment.batch_size(rules, 0) == 8


@given(
    st.integers(1, 1000),
    st.integers(0, 1000),
    st.integers(1, 2**40),
    st.integers(1, 4096),
    st.integers(0, 2**30),
)
def test_batch_never_shrinks_nor_leaves_its_range(
    start: int, more: int, warmup: int, seq_len: int, index: int
) -> None:
    rules = config(
        global_batch_size_start=start,
        global_batch_size_end=start + more,
        global_batch_size_warmup_tokens=warmup,
        max_seq_len=seq_len,
    )
    now = assignment.batch_size(rules, index)
    later = assignment.batch_size(rules, index + 1)
    assert start <= now <= later <= start + more
