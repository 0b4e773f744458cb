"""Test exponential backoff."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aftermath.base.rate_limit import Backoff, doubled


def test_backoff_doubles_up_to_longest() -> None:
    pauses = Backoff(0.25, 4.0)
    attempts = [(pauses.at_longest, pauses.next()) for _ in range(7)]
    assert attempts == [
        (False, 0.25),
        (False, 0.5),
        (False, 1.0),
        (False, 2.0),
        (True, 4.0),
        (True, 4.0),
        (True, 4.0),
    ]


@given(st.integers(1, 10**6), st.floats(0.001, 10), st.floats(10, 1e4))
def test_backoff_delay_grows_up_to_its_limit(tries: int, first: float, longest: float) -> None:
    assert first <= doubled(tries, first, longest) <= doubled(tries + 1, first, longest) <= longest
