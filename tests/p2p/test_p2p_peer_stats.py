"""Test the order in which holders are asked, and how long a fetch waits for them."""

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


def test_equal_holders_keep_callers_order(measured):
    measured.delivered(B, 4 * MIB, 0.1)
    measured.delivered(C, 4 * MIB, 0.2)
    assert measured.ranked([C, A, B, C], ALL, 4 * MIB) == [C, A, B]
    assert measured.ranked([A, B, C], ALL, 4 * MIB) == [A, B, C]


def test_connected_holders_are_ranked_first(measured):
    assert measured.ranked([A, B, C], frozenset({C}), 1) == [C, A, B]


def test_slower_holders_are_ranked_later_fastest_first(measured):
    measured.delivered(A, MIB, 4.0)
    measured.delivered(B, MIB, 2.0)
    measured.delivered(C, MIB, 0.1)
    assert measured.ranked([A, B, C, D], ALL, 4 * MIB) == [C, D, B, A]
    assert measured.ranked([A, B, C, D], ALL, 1000) == [A, B, C, D]


def test_slow_author_keeps_its_position(measured):
    measured.delivered(A, MIB, 4.0)
    measured.delivered(B, MIB, 0.1)
    assert measured.ranked([A, B], ALL, 4 * MIB, author=A) == [A, B]
    measured.late(A)
    assert measured.ranked([A, B], ALL, 4 * MIB, author=A) == [B, A]


def test_unmeasured_holder_has_its_turn_until_measured(measured, now):
    measured.delivered(B, MIB, 0.1)
    assert measured.ranked([A, B], ALL, MIB) == [A, B]
    measured.delivered(A, MIB, 5.0)
    assert measured.ranked([A, B], ALL, MIB) == [B, A]
    now[0] += peer_stats.STALE_S
    assert measured.ranked([A, B], ALL, MIB) == [A, B]


def test_holder_after_one_failure_is_last_until_it_delivers(measured, now):
    measured.failed(A)
    assert measured.ranked([A, B], ALL, 1) == [B, A]
    measured.delivered(A, 1, 0.1)
    assert measured.ranked([A, B], ALL, 1) == [A, B]
    measured.late(A)
    assert measured.ranked([A, B], ALL, 1) == [B, A]
    assert measured.peer(A).failures == 0
    now[0] += peer_stats.FAILURE_S
    assert measured.ranked([A, B], ALL, 1) == [A, B]


def test_holder_after_several_failures_is_excluded(measured, now):
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


def test_patience_follows_round_trip_within_limits(measured):
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


def test_restarted_peer_keeps_only_its_false_blobs(measured, now):
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


def test_delivery_ends_exclusion_for_failures(measured):
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    measured.delivered(A, 1, 0.1)
    assert measured.ranked([A, B], ALL, 1) == [A, B]


def test_excluded_holders_are_available_on_request(measured):
    for _ in range(peer_stats.FAILURES_TO_EXCLUDE):
        measured.failed(A)
    assert measured.ranked([A, B], ALL, 1, excluded=True) == [B, A]
