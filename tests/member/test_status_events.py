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
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.rules.state import MemberState, ModelSource, RunState
from rules import builders


def test_rounds_are_reported_once_per_epoch() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    rounds = [RunState.ROUND_TRAIN, RunState.ROUND_WITNESS] * 3
    for state in (RunState.ROUND_WITNESS, *rounds, RunState.COOLDOWN, RunState.WAITING_FOR_MEMBERS):
        notices.state(builders.run(state))
    states = [event.state for event in events if isinstance(event, event_types.StateChanged)]
    assert states == ["ROUND_TRAIN", "COOLDOWN", "WAITING_FOR_MEMBERS"]


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
    messages = [
        event.message.partition(";")[0]
        for event in events
        if isinstance(event, event_types.Warning)
    ]
    assert messages == ["the run has not begun", "the run is paused", "the run is paused"]


def test_wait_for_absent_holder_is_reported_once() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    run = builders.run(RunState.WAITING_FOR_MEMBERS, epoch_started_at=1)
    waits = {1: builders.seat(1, state=MemberState.IDLE, pending=True)}
    absent = waits | {0: builders.seat(0, state=MemberState.IDLE)}
    for seats, established in ((absent, 0b1), (absent, 0b1), (waits, 0), (absent, 0b1)):
        view = View(run, builders.members(seats, established=established), builders.model())
        notices.holder_wait(view, has_commands=True)
    messages = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert len(messages) == 2
    assert messages[0].startswith(
        "the run waits for an absent member that trained before (after 24 hours"
    )
    assert "aftermath-solana rewind --run-id test" in messages[0]


def test_rewind_to_step_0_warns_of_no_lost_step() -> None:
    """Step 0 has no checkpoint, and nothing is lost."""
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    run = builders.run(RunState.WAITING_FOR_MEMBERS, epoch=2, start_step=9, step=1)
    notices.never_saved(run, builders.model())
    assert not events
    notices.never_saved(replace(run, step=9), builders.model())
    assert len(events) == 1


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
    finished_events = [event for event in events if isinstance(event, event_types.RunFinished)]
    elsewhere = (model.checkpoint.repo, True)
    assert [(event.checkpoint, event.elsewhere) for event in finished_events] == [
        elsewhere,
        elsewhere,
        (str(copy), False),
    ]


@pytest.mark.parametrize("has_commands", [True, False])
@pytest.mark.parametrize(("saved", "named_step"), [([], None), ([3], 3), ([2, 4, 9], 4)])
def test_lost_steps_name_and_protect_copy_that_run_does_not_use(
    tmp_path: Path, saved: list[int], named_step: int | None, has_commands: bool
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
    assert "the run continues at step 4 with the initial model" in warning
    assert ("; rewind --to-step 0 trains the lost steps again" in warning) is has_commands
    assert (
        f"{tmp_path / f'test-step{named_step}'} is a copy of step {named_step}" in warning
    ) is bool(named_step)
    other_copies = "\nThat directory also has test-step2, which the run does not use" in warning
    assert other_copies is (2 in saved)
    assert ("start a new run from the copy" in warning) is bool(named_step)
    assert ("aftermath-solana create-run --run-id NEW" in warning) is bool(
        named_step and has_commands
    )
    on_server = named_step and not has_commands
    assert ("aftermath-centralized server run --run-id NEW" in warning) is bool(on_server)
    assert [step for step in saved if is_protected(tmp_path / f"test-step{step}")] == (
        [named_step] if named_step else []
    )
    assert "chain" not in warning, "the run may be a server's"


def test_loss_names_no_copy_of_another_branch(tmp_path: Path) -> None:
    """The copy of step 6 is from before the run went back to step 2, and began again at step 7."""
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    model = builders.model(checkpoint_step=3)
    save_step(tmp_path, 6)
    notices.lost_before(builders.run(RunState.ROUND_TRAIN, step=9, start_step=8), model)
    again = View(builders.run(RunState.WARMUP, step=10), builders.members({}), model)
    notices.lost(again, tmp_path, has_commands=True)
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert warning.startswith("2 steps of training are lost")
    assert "test-step6" not in warning
    assert not is_protected(tmp_path / "test-step6")


def test_level_without_holder_is_reported_once() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    rounds = (builders.header(0b11),)
    run = builders.run(RunState.ROUND_TRAIN, rounds=rounds, step=9, start_step=7, began=0b11)
    left = builders.seat(0, tier=0, state=MemberState.WITHDRAWN)
    members = builders.members({0: left, 1: builders.seat(1, tier=2)})
    for _ in range(2):
        notices.levels_going_back(
            View(run, members, builders.model(checkpoint_step=6)), saves=False
        )
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert warning.startswith(
        "levels 0, 1 of the model go back to the checkpoint of step 5 in the next epoch"
    )
    assert "\nTo keep later steps, start a tier-0 member: train" in warning


@pytest.mark.parametrize("saves", [True, False])
def test_level_that_too_few_attested_blames_nobody_that_left(saves: bool) -> None:
    """One of three holders attested level 1 of a complete epoch, and waits for the next one."""
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    run = builders.run(RunState.WAITING_FOR_MEMBERS, step=9, levels_lost=0b10)
    waits = builders.seat(0, state=MemberState.IDLE, pending=True)
    view = View(run, builders.members({0: waits}), builders.model())
    notices.levels_going_back(view, saves=saves)
    started = builders.run(
        RunState.WARMUP, step=9, levels_lost=0b10, model_source=ModelSource.PEERS
    )
    notices.lost(View(started, view.members, view.model), None, has_commands=True)
    before, begins = [one.message for one in events if isinstance(one, event_types.Warning)]
    why = "too few of the holders are left, or attested the newest steps"
    assert why in before
    assert why in begins
    assert ("To keep later steps, start a tier-0 member" in before) is not saves


@pytest.mark.parametrize("saves", [True, False])
def test_member_that_saves_is_not_told_to_start_one(saves: bool) -> None:
    """Two of three holders have left, so the third attests nothing alone."""
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    rounds = (builders.header(0b111),)
    run = builders.run(RunState.ROUND_TRAIN, rounds=rounds, step=9, start_step=7, began=0b111)
    left = {seat: builders.seat(seat, state=MemberState.WITHDRAWN) for seat in (0, 1)}
    view = View(run, builders.members({**left, 2: builders.seat(2)}), builders.model())
    notices.levels_going_back(view, saves=saves)
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert warning.startswith(
        "levels 0, 1, 2 of the model go back to the initial model in the next epoch: "
        "only 1 of 3 holders are left"
    )
    assert "tier-0 member" not in warning
    assert ("This member saves a copy" in warning) is saves


def test_member_with_lost_model_does_not_say_that_nobody_has_it() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    view = View(builders.run(RunState.WARMUP, step=5), builders.members({}), builders.model())
    notices.lost(view, None, has_commands=True, has_model=True)
    (warning,) = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert "too few members attested the model" in warning
    assert "no member has the model" not in warning


def _lost(notices: StatusEvents, run: Run, model: Model) -> None:
    view = View(run, builders.members({}), model)
    notices.lost(view, None, has_commands=True)


def test_each_lost_step_is_counted_once() -> None:
    """A run goes back to its checkpoint of step 2 after step 4, and again after step 9."""
    events: list[event_types.Event] = []
    model = builders.model(checkpoint_step=3)
    sees_first_loss = StatusEvents(Events(lambda: 0.0, [events.append]))
    comes_later = StatusEvents(Events(lambda: 0.0, [events.append]))
    _lost(sees_first_loss, builders.run(RunState.WARMUP, step=5), model)
    for _ in range(2):  # a failed warm-up is repeated
        _lost(sees_first_loss, builders.run(RunState.WARMUP, step=5), model)
    for notices in (sees_first_loss, comes_later):
        notices.lost_before(builders.run(RunState.ROUND_TRAIN, step=8, start_step=5), model)
        _lost(notices, builders.run(RunState.WARMUP, step=10, start_step=10), model)
    rewound = StatusEvents(Events(lambda: 0.0, [events.append]))
    _lost(rewound, builders.run(RunState.WARMUP, step=10), model)
    messages = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert [int(message.split()[0]) for message in messages] == [2, 5, 5, 7]


def test_lost_steps_are_not_said_to_be_unrecorded() -> None:
    events: list[event_types.Event] = []
    notices = StatusEvents(Events(lambda: 0.0, [events.append]))
    model = builders.model()
    back = builders.run(RunState.WARMUP, step=6, start_step=6)
    notices.never_saved(back, model)
    assert not events
    _lost(notices, back, model)
    later = {"step": 9, "start_step": 6, "epoch": 1, "model_source": ModelSource.PEERS}
    notices.never_saved(builders.run(RunState.WAITING_FOR_MEMBERS, **later), model)
    messages = [event.message for event in events if isinstance(event, event_types.Warning)]
    assert messages[0].startswith("5 steps of training are lost")
    assert messages[1].startswith("no recorded checkpoint has the last 3 steps")


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
