"""What the first signal to a member does, by what would be lost."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

import pytest

from aftermath.member.unfinished import Stake
from aftermath.train.departure import Departure
from aftermath.watch import kinds
from aftermath.watch.events import Events


@dataclass
class AtStake:
    """A member with so much to lose."""

    at_stake: Stake | None
    stopped: bool = False

    def stake(self) -> Stake | None:
        return self.at_stake

    def stops(self) -> None:
        self.stopped = True


LOST = "6 trained steps are in no checkpoint, and no other member has levels 0, 1 of the model"


@pytest.mark.parametrize(
    ("stake", "number", "can_ask", "answers", "says"),
    [
        (None, signal.SIGINT, True, [0.0], None),
        (Stake(6, [0, 1], saves=True), signal.SIGTERM, False, [60.0], None),
        (Stake(6, [0, 1], saves=False), signal.SIGINT, True, [None, 0.0], "Press Ctrl-C again to leave"),
        (Stake(6, [0, 1], saves=False), signal.SIGTERM, True, [0.0], "These steps are lost now."),
        (Stake(6, [0, 1], saves=False), signal.SIGINT, False, [0.0], "These steps are lost now."),
    ],
)
def test_first_signal_saves_or_asks_by_what_is_at_stake(
    stake: Stake | None, number: signal.Signals, can_ask: bool, answers: list[float | None], says: str | None
) -> None:
    seen: list[Any] = []
    departure, member = Departure(Events(lambda: 0.0, [seen.append]), can_ask=can_ask), AtStake(stake)
    departure.member = member  # type: ignore[assignment]
    assert [departure.on_signal(number) for _ in answers] == answers
    warned = [event.message for event in seen if isinstance(event, kinds.Warning)]
    assert [LOST in message and says is not None and says in message for message in warned] == [True] * bool(says)
    assert member.stopped is (answers == [60.0])
    assert isinstance(seen[-1], kinds.Leaving)
