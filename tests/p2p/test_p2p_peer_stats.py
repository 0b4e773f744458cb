"""The order in which holders are asked, and how long they are waited for."""

import pytest

from aftermath.p2p import peer_stats
from aftermath.p2p.peer_stats import PeerMeasurements

MIB = 1 << 20
A, B, C, D, E = (bytes([number]) * 32 for number in range(5))
ALL = frozenset({A, B, C, D, E})


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def measured(now: list[float]) -> PeerMeasurements:
    return PeerMeasurements(lambda: now[0])


def test_the_callers_order_stands_among_equals(measured):
    measured.delivered(B, 4 * MIB, 0.1)
    measured.delivered(C, 4 * MIB, 0.2)
    assert measured.ranked([C, A, B, C], ALL, 4 * MIB) == [C, A, B]
    assert measured.ranked([A, B, C], ALL, 4 * MIB) == [A, B, C]


def test_connected_ones_come_first(measured):
    assert measured.ranked([A, B, C], frozenset({C}), 1) == [C, A, B]


def test_slower_holders_are_ranked_later_fastest_first(measured):
    measured.delivered(A, MIB, 4.0)
    measured.delivered(B, MIB, 2.0)
    measured.delivered(C, MIB, 0.1)
    assert measured.ranked([A, B, C, D], ALL, 4 * MIB) == [C, D, B, A]
    assert measured.ranked([A, B, C, D], ALL, 1000) == [A, B, C, D]


def test_an_unmeasured_holder_has_its_turn_until_it_is_measured(measured, now):
    measured.delivered(B, MIB, 0.1)
    assert measured.ranked([A, B], ALL, MIB) == [A, B]
    measured.delivered(A, MIB, 5.0)
    assert measured.ranked([A, B], ALL, MIB) == [B, A]
    now[0] += peer_stats.STALE_S
    assert measured.ranked([A, B], ALL, MIB) == [A, B]


def test_one_failure_sends_a_holder_to_the_end_until_it_delivers(measured, now):
    measured.failed(A)
    assert measured.ranked([A, B], ALL, 1) == [B, A]
    measured.delivered(A, 1, 0.1)
    assert measured.ranked([A, B], ALL, 1) == [A, B]
    measured.late(A)
    assert measured.ranked([A, B], ALL, 1) == [B, A]
    assert measured.peer(A).failures == 0
    now[0] += peer_stats.FAILURE_S
    assert measured.ranked([A, B], ALL, 1) == [A, B]


def test_several_failures_exclude_a_holder_while_others_are_left(measured, now):
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    assert measured.ranked([A, B], ALL, 1) == [B]
    assert measured.ranked([A], ALL, 1) == [A]
    now[0] += peer_stats.FAILURE_S
    assert A in measured.ranked([A, B], ALL, 1)
    measured.blamed(B)
    measured.delivered(B, MIB, 0.1)
    now[0] += peer_stats.BLAMED_S - 1
    assert measured.ranked([A, B], ALL, 1) == [A], "a delivery does not undo a lie"


def test_patience_follows_the_round_trip_within_limits(measured):
    assert (measured.hedge(A), measured.patience(A)) == (peer_stats.HEDGE_S, peer_stats.PATIENCE_S)
    measured.peer(A).rtt = 0.3
    assert (measured.hedge(A), measured.patience(A)) == (
        peer_stats.PATIENCE_S,
        0.3 * peer_stats.PATIENCE_ROUND_TRIPS,
    )
    measured.peer(A).rtt = 1000.0
    assert (measured.hedge(A), measured.patience(A)) == (
        peer_stats.PATIENCE_S,
        peer_stats.LONGEST_PATIENCE_S,
    )


def test_another_process_of_a_peer_starts_afresh_but_for_lies(measured, now):
    measured.connected(A, b"first", 0.01)
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    measured.connected(A, b"first", 0.01)
    assert measured.ranked([A, B], ALL, 1) == [B], "the same process has answered nothing yet"
    now[0] += peer_stats.FAILURE_S - 1
    measured.failed(A)
    now[0] += 1
    measured.connected(A, b"second", 0.01)
    assert measured.ranked([A, B], ALL, 1) == [A, B]
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    measured.connected(A, b"third", 0.01)
    assert measured.ranked([A, B], ALL, 1) == [B], "no more often than failures pass by themselves"
    measured.blamed(A)
    now[0] += peer_stats.FAILURE_S
    measured.connected(A, b"fourth", 0.01)
    assert measured.ranked([A, B], ALL, 1) == [B]


def test_a_delivery_ends_an_exclusion_for_failures(measured):
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    measured.delivered(A, 1, 0.1)
    assert measured.ranked([A, B], ALL, 1) == [A, B]


def test_excluded_holders_are_there_for_who_asks_for_them(measured):
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    assert measured.ranked([A, B], ALL, 1, excluded=True) == [B, A]
