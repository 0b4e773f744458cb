"""Test the rule for a run's last epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aftermath.rules.last_epoch import is_last_epoch
from aftermath.rules.state import RunState
from rules import builders


@pytest.mark.parametrize(
    ("state", "step", "height", "overlap", "rounds", "last"),
    [
        (RunState.WARMUP, 41, 0, 0, 20, True),
        (RunState.WARMUP, 40, 0, 0, 20, False),
        (RunState.ROUND_TRAIN, 46, 5, 0, 20, True),
        (RunState.ROUND_TRAIN, 45, 5, 0, 20, False),  # a round made no step
        (RunState.ROUND_TRAIN, 45, 5, 1, 20, True),
        (RunState.COOLDOWN, 61, 20, 1, 20, True),
        (RunState.COOLDOWN, 60, 20, 1, 20, False),
        (RunState.WAITING_FOR_MEMBERS, 61, 0, 0, 20, False),
        (RunState.ROUND_TRAIN, 60, 5, 0, 0, False),  # its epochs last for a time
    ],
)
def test_last_epoch_by_steps_and_rounds_left(
    state: RunState, step: int, height: int, overlap: int, rounds: int, last: bool
) -> None:
    run = builders.run(state, rounds=(builders.header(0b1, height=height, step=step),), step=step)
    config = replace(run.config, rounds_per_epoch=rounds, total_steps=60, overlap=overlap)
    assert is_last_epoch(replace(run, config=config)) is last
