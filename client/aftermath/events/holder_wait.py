"""Say which absent holders of the model a waiting run needs, and how its owner ends the wait."""

from __future__ import annotations

import shlex

from aftermath.base.text import counted
from aftermath.rules.deadlines import waits_a_day, waits_for_holder
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.unsaved import unsaved_steps


def holder_wait(run: Run, members: Members, model: Model, *, has_commands: bool) -> str | None:
    """Return for which absent members the run waits, or None if it waits for no holder.

    `has_commands`: whether the owner can end the wait with commands.
    """
    step = steps_before(model.checkpoint_step)
    saved = step > 0 and not unsaved_steps(run, model)
    if waits_for_holder(run, members, model):
        holder = (
            "a member that finished the last epoch, because no recorded checkpoint has its steps"
        )
    elif waits_a_day(run, members, model):
        known = "trained before" if saved else "has the model"
        holder = f"a member that {known} (after 24 hours, any member)"
    else:
        return None
    if not has_commands:
        return holder
    run_id = shlex.quote(run.run_id)
    how = (
        f"to begin at once from the checkpoint, which has all {counted(step, 'step')}"
        if saved
        else "to continue from the checkpoint instead"
    )
    return (
        f"{holder}; {how}, the owner runs aftermath-solana set-paused "
        f"--run-id {run_id} pause, then aftermath-solana rewind --run-id {run_id} --to-step {step}, then "
        f"aftermath-solana set-paused --run-id {run_id} resume"
    )
