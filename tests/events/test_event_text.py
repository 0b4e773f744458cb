"""What events say to a person."""

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


def test_warning_text_separates_fix() -> None:
    full = AftermathError("0 bytes are free", "Free some space")
    assert Sentences().of(event_types.Warning(message=f"no checkpoint was kept: {full}")) == (
        "[yellow]no checkpoint was kept: 0 bytes are free\n    Free some space[/yellow]"
    )
