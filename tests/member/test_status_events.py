"""Events about the run that a member emits once."""

from __future__ import annotations

from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.status_events import StatusEvents
from aftermath.rules.state import RunState
from rules import builders


def test_rounds_are_reported_once_per_epoch() -> None:
    told: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [told.append]))
    rounds = [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS] * 3
    for state in (RunState.ROUND_WITNESS, *rounds, RunState.COOLDOWN, RunState.WAITING_FOR_MEMBERS):
        notices.state(builders.run(state))
    said = [event.state for event in told if isinstance(event, event_types.StateChanged)]
    assert said == ["ROUND_TRAIN", "COOLDOWN", "WAITING_FOR_MEMBERS"]


def test_halt_warns_each_time_it_begins() -> None:
    told: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [told.append]))
    for state in (
        RunState.UNINITIALIZED,
        RunState.PAUSED,
        RunState.PAUSED,
        RunState.WARMUP,
        RunState.PAUSED,
    ):
        notices.halt(builders.run(state))
    said = [
        event.message.partition(";")[0] for event in told if isinstance(event, event_types.Warning)
    ]
    assert said == ["the run has not begun", "the run is paused", "the run is paused"]
