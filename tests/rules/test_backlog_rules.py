"""No sequence disappears: it is trained once, waits in the backlog, or is counted as lost."""

from __future__ import annotations

from collections import Counter
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from aftermath.rules import assignment
from aftermath.rules.accounts import BACKLOG, Interval, Round
from aftermath.rules.assignment import PositionInterval
from rules.backlog import Backlog, put_back, settle
from rules.builders import header, members, slot

CLIENTS = 6
ROSTER = (1 << CLIENTS) - 1
TABLE = members({index: slot(index, weight=index + 1) for index in range(CLIENTS)})


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(1, 40), st.integers(0, ROSTER)), min_size=1, max_size=30))
def test_every_sequence_is_trained_once_or_waits_or_is_counted(seed: int, rounds: list[tuple[int, int]]) -> None:
    """Rounds of any size, in which any members fail: what was handed out is accounted for at the end."""
    backlog, data_index, trained = Backlog(), 0, Counter[int]()
    for height, (batch, delivered) in enumerate(rounds):
        redo_index, redo, backlog = backlog.take(batch)
        round_ = header(
            ROSTER, seed=seed + height, batch=batch, redo=redo, redo_index=redo_index, data_index=data_index
        )
        data_index += batch - redo
        shares = assignment.assign(round_, TABLE, 0)
        done = [share for index, share in shares.items() if delivered >> index & 1]
        trained.update(chain.from_iterable(chain.from_iterable(assignment.sequences(round_, share) for share in done)))
        backlog = settle(backlog, round_, shares, delivered)
    waiting = Counter(chain.from_iterable(range(interval.start, interval.stop) for interval in backlog.intervals))
    assert all(count == 1 for count in (trained + waiting).values())
    assert set(trained + waiting) <= set(range(data_index))
    assert len(trained) + len(waiting) + backlog.lost == data_index
    assert len(backlog.intervals) <= BACKLOG


def test_neighbouring_shares_come_back_as_one_interval_split_at_the_redo_border() -> None:
    round_ = header(1, batch=20, redo=6, redo_index=100, data_index=1000)
    positions = [PositionInterval(2, 5), PositionInterval(5, 9), PositionInterval(12, 20)]
    assert Backlog().put(positions, round_).intervals == (Interval(102, 4), Interval(1000, 3), Interval(1006, 8))


def test_what_follows_the_last_interval_is_joined_to_it() -> None:
    backlog = Backlog((Interval(10, 5),)).put([PositionInterval(0, 3)], header(1, batch=3, data_index=15))
    assert backlog.intervals == (Interval(10, 8),)


def test_a_full_backlog_counts_what_it_loses_but_still_joins() -> None:
    full = Backlog(tuple(Interval(100 * index, 10) for index in range(BACKLOG)))
    assert full.put([PositionInterval(0, 4)], header(1, batch=4, data_index=5000)) == Backlog(full.intervals, 4)
    joined = full.put([PositionInterval(0, 4)], header(1, batch=4, data_index=710))
    assert (joined.intervals[-1], joined.lost) == (Interval(700, 14), 0)


def test_the_oldest_interval_is_taken_first_and_shrinks() -> None:
    backlog = Backlog((Interval(40, 5), Interval(90, 2)))
    assert backlog.take(3) == (40, 3, Backlog((Interval(43, 2), Interval(90, 2))))
    assert backlog.take(9) == (40, 5, Backlog((Interval(90, 2),)))
    assert Backlog().take(9) == (0, 0, Backlog())
    assert backlog.take(0) == (40, 0, backlog)


def test_a_round_without_attestations_comes_back_whole() -> None:
    round_: Round = header(1, batch=8, redo=3, redo_index=50, data_index=200)
    assert put_back(Backlog(), round_).intervals == (Interval(50, 3), Interval(200, 5))


def test_members_without_a_share_leave_nothing_behind() -> None:
    shares = {0: PositionInterval(0, 0), 1: PositionInterval(0, 4)}
    assert settle(Backlog(), header(0b11, batch=4), shares, attested=0b10) == Backlog()
