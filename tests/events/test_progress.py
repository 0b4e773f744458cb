"""Test the progress and the remaining time of a run."""

from __future__ import annotations

import pytest

from aftermath.events.progress import Progress, span
from events.sample_events import sample_event


def state(progress: Progress, step: int, name: str = "WARMUP", total: int = 100) -> None:
    progress.take(sample_event("state", state=name, step=step, total_steps=total))


def rounds(progress: Progress, first: int, last: int, at: int, seconds: int) -> None:
    """Return the events of rounds that train the steps `first` to `last`."""
    for step in range(first, last + 1):
        since = at + (step - first) * seconds
        progress.take(sample_event("round", step=step, since=since))


def test_progress_before_some_steps_has_no_forecast() -> None:
    progress = Progress()
    assert progress.text() == "no step yet"
    state(progress, 40)
    assert progress.text() == "step 40 of 100"
    rounds(progress, 41, 43, 1000, 6)
    assert progress.text() == "step 42 of 100"
    rounds(progress, 44, 44, 1018, 6)
    assert progress.text() == "step 43 of 100, 6 min left"  # 57 steps of 6 seconds


def test_progress_counts_epoch_breaks_but_not_pauses() -> None:
    progress = Progress()
    state(progress, 0)
    rounds(progress, 1, 11, 0, 1)
    rounds(progress, 12, 21, 21, 1)  # 10 seconds later than without an epoch's end
    assert progress.seconds_left == pytest.approx(80 * 30 / 20)
    state(progress, 20, "PAUSED")
    state(progress, 20, "WARMUP")
    assert progress.seconds_left is None
    rounds(progress, 21, 24, 100_000, 1)
    assert progress.seconds_left == pytest.approx(77)


def test_progress_of_rewound_run_restarts() -> None:
    progress = Progress()
    state(progress, 50)
    rounds(progress, 51, 60, 0, 1)
    state(progress, 20)
    assert progress.text() == "step 20 of 100"


def test_progress_of_drain_round_is_last_step() -> None:
    progress = Progress()
    state(progress, 90)
    rounds(progress, 91, 101, 0, 1)  # the drain round is about a step that is never trained
    assert progress.text() == "step 100 of 100"
    progress.take(sample_event("finished", step=100))
    assert progress.text() == "step 100 of 100"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (150, "2 min"),
        (3590, "1 h 0 min"),
        (5400, "1 h 30 min"),
        (36_000, "10 h"),
        (200_000, "2 days"),
    ],
)
def test_time_span_is_readable(seconds: float, words: str) -> None:
    assert span(seconds) == words
