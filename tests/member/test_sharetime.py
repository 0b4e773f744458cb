"""What a member's shares show of its speed."""

from __future__ import annotations

from aftermath.member.rounds.sharetime import ShareTime
from member.desk import Desk

DECLARED = 60


def test_a_share_that_was_done_shows_the_speed_whatever_was_declared() -> None:
    time = ShareTime(Desk().ports.events, 15.0, DECLARED)
    assert time.weight == DECLARED
    for seconds, weight in ((2.0, 90), (6.0, 30)):
        time.took(3, seconds, done=True)
        assert time.weight == weight


def test_a_share_that_was_given_up_at_once_does_not_make_the_machine_fast() -> None:
    """Who waited for results until the run was ahead gives its share up as soon as it begins."""
    time = ShareTime(Desk().ports.events, 15.0, DECLARED)
    time.took(3, 0.001, done=False)
    assert time.weight == DECLARED
    time.took(3, 16.0, done=False)
    assert time.weight == 11, "3 sequences in 16 seconds are at most 11 a minute"
