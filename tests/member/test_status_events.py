"""Events about the run that a member emits once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aftermath.base.outputs import is_protected, write_mark
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.status_events import StatusEvents, is_last_epoch
from aftermath.model.saved_checkpoints import maker_name
from aftermath.rules.state import MemberState, RunState
from rules import builders


def test_rounds_are_reported_once_per_epoch() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    rounds = [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS] * 3
    for state in (RunState.ROUND_WITNESS, *rounds, RunState.COOLDOWN, RunState.WAITING_FOR_MEMBERS):
        notices.state(builders.run(state))
    said = [event.state for event in events if isinstance(event, event_types.StateChanged)]
    assert said == ["ROUND_TRAIN", "COOLDOWN", "WAITING_FOR_MEMBERS"]


def test_halt_warns_each_time_it_begins() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    for state in (
        RunState.UNINITIALIZED,
        RunState.PAUSED,
        RunState.PAUSED,
        RunState.WARMUP,
        RunState.PAUSED,
    ):
        notices.halt(builders.run(state))
    said = [
        event.message.partition(";")[0]
        for event in events
        if isinstance(event, event_types.Warning)
    ]
    assert said == ["the run has not begun", "the run is paused", "the run is paused"]


def test_wait_for_absent_holder_is_reported_once() -> None:
    told: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [told.append]))
    run = builders.run(RunState.WAITING_FOR_MEMBERS, epoch_started_at=1)
    waits = {1: builders.seat(1, state=MemberState.IDLE, pending=True)}
    absent = waits | {0: builders.seat(0, state=MemberState.IDLE)}
    for seats, established in ((absent, 0b1), (absent, 0b1), (waits, 0), (absent, 0b1)):
        view = View(run, builders.members(seats, established=established), builders.model())
        notices.holder_wait(view, has_commands=True)
    said = [event.message for event in told if isinstance(event, event_types.Warning)]
    assert len(said) == 2
    assert said[0].startswith("the run waits for a member that has the model (after 24 hours")
    assert "aftermath-solana rewind --run-id test" in said[0]


def test_rewind_to_step_0_warns_of_no_lost_step() -> None:
    """Step 0 has no checkpoint, and nothing is lost."""
    told: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [told.append]))
    run = builders.run(RunState.WAITING_FOR_MEMBERS, epoch=2, start_step=9, step=1)
    notices.never_saved(run, builders.model())
    assert not told
    notices.never_saved(replace(run, step=9), builders.model())
    assert len(told) == 1


def save_step(directory: Path, step: int) -> Path:
    """Make the directory of a checkpoint of the run that `builders` makes."""
    path = directory / f"test-step{step}"
    path.mkdir(parents=True)
    write_mark(path, maker_name(builders.run(RunState.WARMUP).identity))
    return path


def test_finished_names_copy_of_this_member_first(tmp_path: Path) -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    run = builders.run(RunState.FINISHED, step=7)
    model = builders.model(checkpoint_step=7)
    for directory in (None, tmp_path):
        notices.finished(run, model, directory)
    copy = save_step(tmp_path, 6)
    notices.finished(run, model, tmp_path)
    said = [event for event in events if isinstance(event, event_types.RunFinished)]
    elsewhere = (model.checkpoint.repo, True)
    assert [(event.checkpoint, event.elsewhere) for event in said] == [
        elsewhere,
        elsewhere,
        (str(copy), False),
    ]


@pytest.mark.parametrize("has_commands", [True, False])
@pytest.mark.parametrize(("saved", "named"), [([], None), ([3], 3), ([2, 4, 9], 4)])
def test_lost_steps_name_and_protect_copy_that_run_does_not_use(
    tmp_path: Path, saved: list[int], named: int | None, has_commands: bool
) -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    for step in saved:
        save_step(tmp_path, step)
    view = View(builders.run(RunState.WARMUP, step=5), builders.members({}), builders.model())
    notices.lost(view, tmp_path, has_commands=has_commands)
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert warning.startswith(
        "4 steps of training are lost: no member has the model, and the only "
    )
    assert "was saved" not in warning
    assert (f"{tmp_path / f'test-step{named}'} is a copy of step {named}" in warning) is bool(named)
    assert ("start a new run from the copy" in warning) is bool(named)
    assert ("aftermath-solana create-run --run-id NEW" in warning) is bool(named and has_commands)
    on_server = named and not has_commands
    assert ("aftermath-centralized server run --run-id NEW" in warning) is bool(on_server)
    assert [step for step in saved if is_protected(tmp_path / f"test-step{step}")] == (
        [named] if named else []
    )
    assert "chain" not in warning, "the run may be a server's"


@pytest.mark.parametrize(
    ("state", "step", "height", "overlap", "rounds", "last"),
    [
        (RunState.WARMUP, 41, 0, 0, 20, True),
        (RunState.WARMUP, 40, 0, 0, 20, False),
        (RunState.ROUND_TRAIN, 46, 5, 0, 20, True),
        (RunState.ROUND_TRAIN, 45, 5, 0, 20, False),  # one round made no step
        (RunState.ROUND_TRAIN, 45, 5, 1, 20, True),
        (RunState.COOLDOWN, 61, 20, 1, 20, True),
        (RunState.COOLDOWN, 60, 20, 1, 20, False),
        (RunState.WAITING_FOR_MEMBERS, 61, 0, 0, 20, False),
        (RunState.ROUND_TRAIN, 60, 5, 0, 0, False),  # epochs are limited by time, not by rounds
    ],
)
def test_last_epoch_by_steps_and_rounds_left(
    state: RunState, step: int, height: int, overlap: int, rounds: int, last: bool
) -> None:
    run = builders.run(state, rounds=(builders.header(0b1, height=height, step=step),), step=step)
    config = replace(run.config, rounds_per_epoch=rounds, total_steps=60, overlap=overlap)
    assert is_last_epoch(replace(run, config=config)) is last
