"""One-time events about the run: its state, the owner's actions, and what it waits for."""

from __future__ import annotations

from aftermath.base.text import counted
from aftermath.events import event_types
from aftermath.events.status import lost_with_members
from aftermath.events.stream import Events
from aftermath.rules import contents
from aftermath.rules.last_epoch import is_last_epoch
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import ModelSource, RunState
from aftermath.rules.unsaved import never_saved

_HALTED = {
    RunState.UNINITIALIZED: "the run has not begun: this member joins once its owner starts it with set-paused resume",
    RunState.PAUSED: "the run is paused: this member joins once its owner says set-paused resume",
}


class StatusEvents:
    """Reports on one run, as long as the member lives."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._state: RunState | None = None
        self._reached = 0
        self._waits_for = -1
        self._came_at = 0
        self._warned_of = -1
        self._halted_by: str | None = None
        self._spec_error = ""

    def state(self, run: Run) -> None:
        """Report a new state. ROUND_WITNESS counts as ROUND_TRAIN, to save events."""
        state = RunState.ROUND_TRAIN if run.state is RunState.ROUND_WITNESS else run.state
        if state is self._state:
            return
        self._state = state
        self._events.emit(
            event_types.StateChanged(
                epoch=run.epoch,
                state=state.name,
                step=run.trained_steps,
                total_steps=run.config.total_steps,
                since=run.state_started_at,
                last=is_last_epoch(run),
            )
        )

    def rewinding(self, run: Run) -> None:
        """Report that the run has fewer steps than before."""
        if run.trained_steps < self._reached:
            self._events.emit(event_types.Rewound(before=self._reached, step=run.trained_steps))
        self._reached = run.trained_steps

    def lost(self, run: Run, model: Model) -> None:
        """Warn that the epoch starts from older levels, because members may have lost the newest
        ones.
        """
        kept = steps_before(model.checkpoint_step)
        reached = run.trained_steps
        if run.model_source is ModelSource.CHECKPOINT and kept < reached:
            lost = counted(reached - kept, "step of training is", "steps of training are")
            newest = (
                f"the newest checkpoint is of step {kept}" if kept else "no checkpoint was kept"
            )
            self._events.emit(
                event_types.Warning(
                    message=f"{lost} lost: nobody here has the model, and {newest}",
                )
            )
            return  # all levels are older, and that was reported
        for level in (level for level in range(run.levels) if run.levels_lost >> level & 1):
            self._events.emit(
                event_types.Warning(
                    message=f"too few are left who hold level {level} of the model as the run had it: it goes back to "
                    f"the checkpoint of step {kept}, {counted(reached - kept, 'step')} before",
                )
            )
        for level in contents.unattested(run):
            self._events.emit(
                event_types.Warning(
                    message=f"too few said at the end of the last epoch what level {level} of the model is, or not the "
                    f"same: it goes back to the checkpoint of step {kept}, {counted(reached - kept, 'step')} before",
                )
            )

    def finished(self, run: Run, model: Model) -> None:
        """Say that the run is finished, and which of its steps are in the checkpoint that the chain
        names.
        """
        kept = steps_before(model.checkpoint_step)
        place = model.checkpoint.repo if kept else None
        step = kept if kept else None
        self._events.emit(
            event_types.RunFinished(step=run.trained_steps, checkpoint=place, checkpoint_step=step)
        )

    def never_saved(self, run: Run, model: Model) -> None:
        """Warn once per epoch, and at the run's end, if the chain names no checkpoint."""
        if not never_saved(run, model) or self._warned_of == run.epoch:
            return
        self._warned_of = run.epoch
        how = "Start a tier-0 member that saves one: train --matformer-tier 0 --checkpoint-dir DIR"
        if run.state is RunState.FINISHED:
            how = "In the next run, start a tier-0 member with --checkpoint-dir DIR"
        message = f"{lost_with_members(run.trained_steps)}\n{how}"
        self._events.emit(event_types.Warning(message=message, until="checkpoint"))

    def waiting(self, run: Run) -> bool:
        """Report once per epoch that a seated member waits for the next epoch.

        Return whether the member should leave: the epoch is the last one and makes steps. A stalled
        epoch may be abandoned, and then the run needs this member in the next one.
        """
        late = run.state is RunState.WARMUP or run.state.active
        if late and self._waits_for != run.epoch + 1:
            self._waits_for = run.epoch + 1
            self._came_at = run.trained_steps
            self._events.emit(event_types.Waiting(epoch=self._waits_for))
        leaves = run.state.training and is_last_epoch(run) and run.trained_steps > self._came_at
        if leaves:
            self._events.emit(event_types.Waiting(epoch=self._waits_for, leaves=True))
        return leaves

    def halt(self, run: Run) -> None:
        """Report once that everybody waits for the owner."""
        why = _HALTED.get(run.state)
        if why != self._halted_by and why is not None:
            self._events.emit(event_types.Warning(message=why, until="joined"))
        self._halted_by = why

    def unreadable(self, run: Run, model: Model) -> None:
        """Warn once that this client cannot read the training spec of a halted run."""
        if run.halted and model.spec_error and model.spec_error != self._spec_error:
            message = (
                f"{model.spec_error}; this member waits, and ends if the run is resumed with it\n"
                "Ask the run's owner for another one, or use the client version that wrote it"
            )
            self._events.emit(event_types.Warning(message=message, until="joined"))
        self._spec_error = model.spec_error
