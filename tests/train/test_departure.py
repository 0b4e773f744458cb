"""Test what the first signal to a member does, depending on what would be lost."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.stake import SavedCopy, Stake
from aftermath.train.interrupts import Departure, ask_on_stderr, is_a_person_there


@dataclass
class AtStake:
    """A member whose leaving would lose this stake."""

    at_stake: Stake | None
    stopped: Callable[[bool], bool] | None = None
    saving: Callable[[Stake], None] | None = None

    def stake(self) -> Stake | None:
        return self.at_stake

    def stops(self, again: Callable[[bool], bool], saving: Callable[[Stake], None]) -> None:
        self.stopped = again
        self.saving = saving


GONE = "6 trained steps are lost: this member had the only copy of levels 0, 1 of the model"
LOST = "6 trained steps are in no checkpoint, and no other member has levels 0, 1 of the model"


@pytest.mark.parametrize(
    ("stake", "number", "can_ask", "answers", "says"),
    [
        (None, signal.SIGINT, True, [0.0], None),
        (Stake(6, [0, 1], saves=True), signal.SIGTERM, False, [60.0], None),
        (Stake(6, [0, 1], saves=True), signal.SIGHUP, True, [60.0], None),
        (
            Stake(6, [0, 1], saves=False),
            signal.SIGINT,
            True,
            [None, 0.0],
            "Press Ctrl-C again to leave",
        ),
        (Stake(6, [0, 1], saves=False), signal.SIGTERM, True, [0.0], GONE),
        (Stake(6, [0, 1], saves=False), signal.SIGHUP, True, [0.0], GONE),
        (Stake(6, [0, 1], saves=False), signal.SIGINT, False, [0.0], GONE),
    ],
)
def test_first_signal_saves_or_asks_by_stake(
    stake: Stake | None,
    number: signal.Signals,
    can_ask: bool,
    answers: list[float | None],
    says: str | None,
) -> None:
    events: list[Any] = []
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=can_ask)
    member = AtStake(stake)
    departure.member = member  # type: ignore[assignment]
    assert [departure.on_signal(number) for _ in answers] == answers
    warned = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert [says is not None and says in message for message in warned] == [True] * bool(says)
    assert (member.stopped is not None) is (stake is None or stake.saves)
    assert departure.lost == stake
    assert isinstance(events[-1], event_types.Leaving)


@pytest.mark.parametrize(
    ("number", "can_ask", "stays"),
    [(signal.SIGINT, True, True), (signal.SIGTERM, True, False), (signal.SIGINT, False, False)],
)
def test_failed_save_asks_for_another_ctrl_c_on_terminal(
    number: signal.Signals, can_ask: bool, stays: bool
) -> None:
    events: list[Any] = []
    stake = Stake(6, [0, 1], saves=True)
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=can_ask)
    member = AtStake(stake)
    departure.member = member  # type: ignore[assignment]
    stayed = list[bool]()
    departure.stay = lambda: stayed.append(True)
    assert departure.on_signal(number) == 60.0
    assert member.stopped is not None
    assert [member.stopped(False), member.stopped(False)] == [stays, stays]
    assert stayed == [True] * stays
    assert departure.lost == stake, "also if a third signal ends the process at once"
    first = next(event.message for event in events if isinstance(event, event_types.Warning))
    assert first.startswith(LOST if stays else GONE)
    assert "it saves no checkpoints" not in first
    assert ("Press Ctrl-C again" in first) is stays
    if stays:
        assert departure.on_signal(signal.SIGINT) == 60.0, "it tries once more"
        assert departure.lost == stake
    assert not member.stopped(True)
    assert departure.lost is None


def test_member_that_becomes_last_after_signal_gets_time_to_save() -> None:
    events: list[Any] = []
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=True)
    member = AtStake(None)
    departure.member = member  # type: ignore[assignment]
    seconds = list[float]()
    departure.saves_for = seconds.append
    assert departure.on_signal(signal.SIGINT) == 0.0
    assert member.stopped is not None
    assert member.saving is not None
    member.at_stake = Stake(6, [0, 1], saves=True)
    member.saving(member.at_stake)
    assert seconds == [60.0]
    assert [event.saves for event in events] == [False, True]
    assert departure.lost == member.at_stake
    assert not member.stopped(True)
    assert departure.lost is None


FEW = "only 1 of 3 holders are left"


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize(
    ("number", "can_ask"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, True)],
)
def test_member_that_others_need_is_warned_before_it_leaves(
    number: signal.Signals, can_ask: bool, saves: bool
) -> None:
    """A copy does not help the members that stay, so the member is asked with one too."""
    events: list[Any] = []
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=can_ask)
    stake = Stake(6, [0, 1], saves=saves, goes_back=True, others_continue=True, reason=FEW)
    member = AtStake(stake)
    departure.member = member  # type: ignore[assignment]
    asks = can_ask and number == signal.SIGINT
    seconds = 60.0 if saves else 0.0
    if asks:
        assert departure.on_signal(number) is None
        assert member.stopped is None
    assert departure.on_signal(number) == seconds
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert FEW in warning
    assert ("Stay until the epoch ends, or let the owner pause" in warning) is asks
    assert ("Press Ctrl-C again to leave" in warning) is asks
    assert (member.stopped is not None) is saves
    assert departure.lost == stake


@pytest.mark.parametrize(
    ("number", "can_ask", "is_lost_already", "asks"),
    [
        (signal.SIGINT, True, False, True),
        (signal.SIGINT, True, True, False),
        (signal.SIGINT, False, False, False),
        (signal.SIGTERM, True, False, False),
    ],
)
def test_last_holder_that_saves_only_copy_is_asked_on_terminal(
    number: signal.Signals, can_ask: bool, is_lost_already: bool, asks: bool
) -> None:
    """Without a terminal it is not warned, because it keeps its seat if the others leave too."""
    events: list[Any] = []
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=can_ask)
    stake = Stake(
        6,
        [0, 1],
        saves=True,
        goes_back=True,
        others_continue=True,
        saves_only_copy=True,
        is_lost_already=is_lost_already,
    )
    member = AtStake(stake)
    departure.member = member  # type: ignore[assignment]
    if asks:
        assert departure.on_signal(number) is None
        assert member.stopped is None
    assert departure.on_signal(number) == 60.0
    assert member.stopped is not None
    warned = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert len(warned) == asks
    for message in warned:
        assert message.startswith(LOST)
        assert "Stay until the epoch ends, or let the owner pause the run first" in message
        assert "Press Ctrl-C again to leave" in message


def test_member_of_epoch_that_is_lost_already_is_not_asked() -> None:
    events: list[Any] = []
    departure = Departure(Events(lambda: 0.0, [events.append]), can_ask=True)
    stake = Stake(6, [0, 1], saves=False, reason=FEW, is_lost_already=True)
    departure.member = AtStake(stake)  # type: ignore[assignment]
    assert departure.on_signal(signal.SIGINT) == 0.0
    assert not [event for event in events if isinstance(event, event_types.Warning)]
    assert departure.lost == stake


@pytest.mark.parametrize("goes_back", [True, False])
def test_saved_copy_of_run_that_goes_back_is_a_loss(goes_back: bool) -> None:
    """A server's only client saved its model, and the run does not continue from it."""
    departure = Departure(Events(lambda: 0.0, []), can_ask=True)
    member = AtStake(
        Stake(
            6, [0, 1], saves=True, goes_back=goes_back, copy=SavedCopy(Path("r-step6"), 6), copied=6
        )
    )
    departure.member = member  # type: ignore[assignment]
    assert departure.on_signal(signal.SIGINT) == 60.0
    assert member.stopped is not None
    assert not member.stopped(True)
    assert (departure.lost is not None) is goes_back
    if departure.lost is not None:
        error = departure.lost.lost()
        assert error.code == "model-lost"
        assert "6 trained steps are only in the copy" in error.message
        assert 'write path = "r-step6" in [model.LLM.checkpoint.Local]' in (error.fix or "")
        assert "set-paused --run-id NEW resume" in (error.fix or "")
    member.at_stake = None  # a checkpoint was recorded meanwhile
    assert not member.stopped(True)
    assert departure.lost is None


@pytest.mark.parametrize(
    ("stdin", "stdout", "asks", "on_stderr"),
    [
        (True, True, True, False),
        (True, False, True, True),
        (False, True, False, False),
        (False, False, False, False),
    ],
)
def test_departure_question_needs_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: bool,
    stdout: bool,
    asks: bool,
    on_stderr: bool,
) -> None:
    """With `train ...

    tee log`, the question goes to standard error.
    """
    monkeypatch.setattr("sys.stdin", Terminal() if stdin else io.StringIO())
    monkeypatch.setattr("sys.stdout", Terminal() if stdout else io.StringIO())
    departure = Departure(Events(lambda: 0.0, []), can_ask=is_a_person_there(), ask=ask_on_stderr)
    departure.member = AtStake(Stake(6, [0, 1], saves=False))  # type: ignore[assignment]
    assert (departure.on_signal(signal.SIGINT) is None) is asks
    assert ("Press Ctrl-C again to leave" in capsys.readouterr().err) is on_stderr


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True
