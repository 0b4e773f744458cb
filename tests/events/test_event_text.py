"""Test the sentences about events."""

from __future__ import annotations

import msgspec
import pytest

from aftermath.base.errors import AftermathError
from aftermath.events import event_types
from aftermath.events.stream import plain
from aftermath.events.text import Sentences


def test_member_names_in_text_equal_their_source() -> None:
    started = event_types.MemberStarted(run_id="demo", tier=0, wallet="Key1", version="1")
    assert Sentences().of(started) == "run demo, tier 0, wallet Key1, aftermath 1"
    assert "key" not in plain(started), "as it was before there was another"
    of_a_server = msgspec.structs.replace(started, key="identity")
    assert Sentences().of(of_a_server) == "run demo, tier 0, identity Key1, aftermath 1"


@pytest.mark.parametrize(
    ("checkpoint", "step", "end"),
    [
        (None, None, ""),
        ("/kept/run-step6", 6, "; the model is in /kept/run-step6"),
        ("/kept/run-step6", None, "; the model is in /kept/run-step6"),
        (
            "/kept/run-step3",
            3,
            "; the newest checkpoint is of step 3, in /kept/run-step3; steps 4 to 6 are in none",
        ),
        (
            "/kept/run-step5",
            5,
            "; the newest checkpoint is of step 5, in /kept/run-step5; step 6 is in none",
        ),
    ],
)
def test_finished_run_names_model_only_of_its_last_step(
    checkpoint: str | None, step: int | None, end: str
) -> None:
    """Events of an older version have no `checkpoint_step`."""
    finished = event_types.RunFinished(step=6, checkpoint=checkpoint, checkpoint_step=step)
    assert Sentences().of(finished) == f"the run is finished: 6 steps{end}"


@pytest.mark.parametrize(
    ("step", "end"),
    [
        (
            6,
            "another member saved the model on its machine, in /kept/a: ask the run's owner for it",
        ),
        (
            5,
            "the newest checkpoint is of step 5, in /kept/a on the machine of the member that saved it; "
            "step 6 is in none",
        ),
    ],
)
def test_finished_run_says_checkpoint_is_elsewhere(step: int, end: str) -> None:
    finished = event_types.RunFinished(
        step=6, checkpoint="/kept/a", checkpoint_step=step, elsewhere=True
    )
    assert Sentences().of(finished) == f"the run is finished: 6 steps; {end}"


def test_waiting_text_names_end_of_stopped_epoch() -> None:
    waiting = event_types.Waiting(epoch=2, ends_in=31)
    assert Sentences().of(waiting) == (
        "waiting for epoch 2; epoch 1 makes no more steps and ends in 31 s at the latest"
    )


@pytest.mark.parametrize(
    ("checkpoint_step", "source"),
    [
        (None, "the checkpoint"),
        (9, "the checkpoint"),
        (0, "the checkpoint of step 0"),
        (4, "the checkpoint of step 4"),
    ],
)
def test_model_text_names_older_checkpoint(checkpoint_step: int | None, source: str) -> None:
    ready = event_types.ModelReady(source="the checkpoint", step=9, checkpoint_step=checkpoint_step)
    assert Sentences().of(ready) == f"loaded the model from {source}; the run is at step 9"


def state_change(state: str, epoch: int) -> event_types.StateChanged:
    return event_types.StateChanged(epoch=epoch, state=state, step=60, total_steps=60, since=1000)


def test_repeated_sign_up_is_printed_once_per_epoch() -> None:
    sentences = Sentences()
    joined = event_types.Joined(seat=0, tier=1, weight=5, epoch=0)
    line = "signed up for the next epoch (seat 0, tier 1)"
    assert [sentences.of(joined), sentences.of(joined)] == [line, None]
    sentences.of(state_change("WARMUP", 1))
    assert [sentences.of(joined), sentences.of(joined)] == [line, None]


def test_finished_state_text_names_no_epoch() -> None:
    assert Sentences().of(state_change("FINISHED", 4)) == "finished; step 60 of 60"


def test_warning_text_separates_fix() -> None:
    full = AftermathError("0 bytes are free", "Free some space")
    assert Sentences().of(event_types.Warning(message=f"no checkpoint was kept: {full}")) == (
        "[yellow]no checkpoint was kept: 0 bytes are free\n    Free some space[/yellow]"
    )
