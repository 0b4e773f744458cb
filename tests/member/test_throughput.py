"""The speed that a member's shares show."""

from __future__ import annotations

from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.rounds.throughput import Throughput
from member.result_inbox import ResultInbox

DECLARED = 60


def test_trained_share_sets_speed() -> None:
    time = Throughput(ResultInbox().ports.events, 15.0, DECLARED)
    assert time.weight == DECLARED
    for seconds, weight in ((2.0, 90), (6.0, 30)):
        time.took(3, seconds, done=True)
        assert time.weight == weight


def test_share_abandoned_at_once_does_not_raise_speed() -> None:
    """If the run moved on while a member waited for results, it abandons its share at once."""
    time = Throughput(ResultInbox().ports.events, 15.0, DECLARED)
    time.took(3, 0.001, done=False)
    assert time.weight == DECLARED
    time.took(3, 16.0, done=False)
    assert time.weight == 11, "3 sequences in 16 seconds are at most 11 a minute"


def test_consecutive_abandoned_shares_repeat_warning() -> None:
    """In rounds of one second, shares are abandoned at once and take no time."""
    events: list[event_types.Event] = []
    time = Throughput(Events(lambda: 0.0, [events.append]), 15.0, DECLARED)
    for _ in range(12):
        time.took(3, 0.001, done=False)
    messages = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert [message.split(": ")[1].split(" in a row")[0] for message in messages] == [
        "3 shares",
        "12 shares",
    ]
