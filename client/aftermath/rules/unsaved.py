"""Count the trained steps that are lost when a run's last member ends, because no checkpoint has them."""

from __future__ import annotations

from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before


def unsaved_steps(run: Run, model: Model) -> int:
    """Return how many of the run's trained steps are not in the checkpoint that the chain names."""
    return max(0, run.trained_steps - steps_before(model.checkpoint_step))


def never_saved(run: Run, model: Model) -> bool:
    """Return whether an epoch has ended and the chain names no checkpoint with trained steps."""
    return steps_before(run.start_step) > 0 and steps_before(model.checkpoint_step) == 0
