"""Test that every sequence is trained once or waits in the backlog."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import assignment
from aftermath.rules.assignment import PositionInterval
from aftermath.rules.run import BACKLOG, REDO, Interval, Round
from rules.backlog import Backlog, put_back, settle
from rules.builders import header, members, seat

CLIENTS = 30
ROSTER = (1 << CLIENTS) - 1
TABLE = members({index: seat(index, weight=index + 1) for index in range(CLIENTS)})


@given(
    st.integers(0, 2**32),
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, ROSTER)), min_size=1, max_size=40),
)
def test_sequences_are_trained_once_or_waiting(seed: int, rounds: list[tuple[int, int]]) -> None:
    """In rounds of any size, any members fail. All assigned sequences are accounted for at the
    end.
    """
    backlog = Backlog()
    data_index = 0
    trained = Counter[int]()
    for height, (size, delivered) in enumerate(rounds):
        batch = backlog.batch(size)
        redo, backlog = backlog.take(size)
        round_ = header(ROSTER, seed=seed + height, batch=batch, redo=redo, data_index=data_index)
        data_index += batch - round_.redone
        shares = assignment.assign(round_, TABLE)
        settled = settle(backlog, round_, shares, delivered)
        attested_shares = [
            share for index, share in shares.items() if settled.attested >> index & 1
        ]
        assert settled.worked == any(share.len for share in attested_shares)
        trained.update(
            chain.from_iterable(
                chain.from_iterable(
                    assignment.sequences(round_, share) for share in attested_shares
                )
            )
        )
        backlog = settled.backlog
    waiting = Counter(
        chain.from_iterable(range(interval.start, interval.stop) for interval in backlog.intervals)
    )
    assert all(count == 1 for count in (trained + waiting).values())
    assert set(trained + waiting) == set(range(data_index))
    assert len(backlog.intervals) <= BACKLOG


def test_adjacent_failed_shares_are_split_at_redo_border() -> None:
    round_ = header(1, batch=20, redo=(Interval(100, 6),), data_index=1000)
    shares = {1: PositionInterval(2, 5), 2: PositionInterval(5, 9), 0: PositionInterval(9, 12)}
    shares |= {3: PositionInterval(12, 20)}
    assert settle(Backlog(), round_, shares, 1).backlog.intervals == (
        Interval(102, 4),
        Interval(1000, 3),
        Interval(1006, 8),
    )


def test_adjacent_intervals_are_merged_on_both_sides() -> None:
    backlog = Backlog((Interval(10, 5), Interval(18, 2), Interval(40, 1)))
    assert backlog.put([Interval(15, 3)]).intervals == (Interval(10, 10), Interval(40, 1))
    assert backlog.put([Interval(5, 5)]).intervals[0] == Interval(5, 10)


def test_backlog_without_room_for_gaps_takes_whole_round() -> None:
    full = Backlog(tuple(Interval(100 * index, 10) for index in range(BACKLOG - 2 * (REDO + 1))))
    round_ = header(0b11, batch=8, data_index=50_000)
    shares = {0: PositionInterval(0, 4), 1: PositionInterval(4, 8)}
    settled = settle(full, round_, shares, 0b01)
    assert (settled.attested, settled.worked) == (0, False)
    assert settled.backlog.intervals[-1] == Interval(50_000, 8)
    assert settle(full, round_, shares, 0b11).worked
    fuller = settled.backlog.put(Interval(60_000 + 9 * index, 1) for index in range(REDO))
    assert fuller.batch(1000) == 10 * REDO  # and nothing fresh until there is room again


def test_take_uses_first_intervals_and_shrinks_last() -> None:
    backlog = Backlog((Interval(40, 5), Interval(90, 2), Interval(95, 1)))
    assert backlog.take(3) == (
        (Interval(40, 3),),
        Backlog((Interval(43, 2), Interval(90, 2), Interval(95, 1))),
    )
    assert backlog.take(6) == (
        (Interval(40, 5), Interval(90, 1)),
        Backlog((Interval(91, 1), Interval(95, 1))),
    )
    assert backlog.take(9) == (backlog.intervals, Backlog())
    assert Backlog().take(9) == ((), Backlog())
    assert backlog.take(0) == ((), backlog)


def test_backlog_takes_whole_round_without_attestations() -> None:
    round_: Round = header(1, batch=8, redo=(Interval(50, 3),), data_index=200)
    assert put_back(Backlog(), round_).intervals == (Interval(50, 3), Interval(200, 5))


def test_members_without_share_leave_no_gaps() -> None:
    shares = {0: PositionInterval(0, 0), 1: PositionInterval(0, 4)}
    settled = settle(Backlog(), header(0b11, batch=4), shares, 0b10)
    assert (settled.backlog, settled.attested) == (Backlog(), 0b11)
