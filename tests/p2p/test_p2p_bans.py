"""Test how long a peer is banned: longer with each offence, until it has behaved for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aftermath.p2p.limits import FIRST_S, LONGEST_S, REMEMBERED_PEERS, Bans


class Hands:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ban_doubles_per_offence_up_to_maximum() -> None:
    clock = Hands()
    bars = Bans(clock)
    times = []
    for _ in range(12):
        times.append(bars.offended(b"p"))
        clock.now += bars.seconds_left(b"p")
        assert bars.seconds_left(b"p") == 0
    assert times[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert times[-1] == LONGEST_S


def test_ban_history_after_long_good_time_is_forgiven() -> None:
    clock = Hands()
    bars = Bans(clock)
    bars.offended(b"p"), bars.offended(b"p")
    clock.now += bars.seconds_left(b"p") + LONGEST_S
    assert bars.offended(b"p") == FIRST_S


@given(st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 4000)), max_size=60))
def test_ban_affects_only_offender_and_memory_is_bounded(
    offences: list[tuple[int, float]],
) -> None:
    clock = Hands()
    bars = Bans(clock)
    for who, later in offences:
        clock.now += later
        assert 0 < bars.offended(who.to_bytes(2, "big")) <= LONGEST_S
    assert bars.seconds_left(b"stranger") == 0
    assert len(bars._records) <= REMEMBERED_PEERS
