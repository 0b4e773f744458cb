"""Tell whether the running epoch is a run's last one."""

from __future__ import annotations

from aftermath.rules.run import Run
from aftermath.rules.state import RunState


def is_last_epoch(run: Run) -> bool:
    """Return whether the run ends with the running epoch if each of its rounds makes a step.

    False if the epoch's length is a time, since the number of its rounds is unknown.
    """
    rounds = run.config.rounds_per_epoch
    missing = run.config.total_steps - run.trained_steps
    if run.state is RunState.WARMUP:
        return 0 < missing <= rounds
    if run.state is RunState.COOLDOWN:
        return missing <= 0
    # With overlap, the step of the round before this one is not counted yet.
    return (
        run.state.training
        and missing <= rounds - run.current.height + run.config.overlap
        and rounds > 0
    )
