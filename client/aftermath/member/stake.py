"""What is lost when a member leaves, or was lost before it came back. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.events.progress import levels_go_back, levels_named
from aftermath.member.unused_copies import new_run
from aftermath.model.saved_checkpoints import stem_of_run, step_directory
from aftermath.rules.contents import begins_from_checkpoint, claimed_by_no_other, unsaved_steps
from aftermath.rules.model import Model
from aftermath.rules.run import Run

SAVE_SECONDS = 60.0
"""Seconds that a stopped member has for the last results and the file.

Services wait longer before they kill it.
"""
_NEXT_TIME = (
    "In the next run, start a tier-0 member with --checkpoint-dir DIR, on a disk with enough space"
)
_WRITABLE = "Give the next start a --checkpoint-dir that it can write, on a disk with enough space"
_STOP_LAST = "Let a tier-0 member with --checkpoint-dir DIR take part, and stop it last"
_PAUSE_FIRST = "Next time stay until the epoch ends, or let the owner pause the run first"
_SAME_DIRECTORY = (
    "If this member wrote checkpoints before, start it with the same --checkpoint-dir DIR. "
)


class ModelLost(AftermathError):
    """Trained steps that only this member had are in no checkpoint."""

    code = "model-lost"


class UnsavedSteps:
    """Counts the trained steps of one member's replica that are in no checkpoint."""

    def __init__(self) -> None:
        self._gone_back: tuple[int, int] | None = None
        """The checkpoint step that the epoch began from, and how many later steps it lost."""

    def begins(self, run: Run, model: Model) -> None:
        """Record which trained steps the replica lacks at the start of an epoch."""
        self._gone_back = None
        if begins_from_checkpoint(run, model):
            self._gone_back = model.checkpoint_step, unsaved_steps(run, model)

    def count(self, run: Run, model: Model, *, step: int | None = None) -> int:
        """Return the number of these steps. `step`: trained steps, if not the run's."""
        steps = unsaved_steps(run if step is None else replace(run, step=step + 1), model)
        if self._gone_back is not None and self._gone_back[0] == model.checkpoint_step:
            steps -= self._gone_back[1]
        return steps


@dataclass(frozen=True)
class Stake:
    """What would be lost if this member left now."""

    steps: int
    """Trained steps in no checkpoint."""
    levels: list[int]
    """Levels that no other member has, or that the members that stay cannot attest."""
    saves: bool
    """Whether this member can save the steps to its checkpoint directory."""
    goes_back: bool = False
    """Whether these levels go back to the checkpoint even if this member saves the steps."""
    others_continue: bool = False
    """Whether other members continue with the other levels."""
    checkpoint_step: int = 0
    copy: Path | None = None
    """The copy with the steps that this member saved and the run does not use."""
    has_commands: bool = True
    """Whether the run is on chain. False for a run on a server."""
    is_finished: bool = False
    """Whether the run is finished, so that nobody can train the steps again."""
    reason: str = ""
    """Why other members that have these levels lose them too, as a clause. Empty if none has."""
    is_lost_already: bool = False
    """Whether the levels go back even if this member stays."""

    @property
    def costs_others(self) -> bool:
        """Whether other members lose their training if this one leaves. A copy does not help."""
        return bool(self.reason) and not self.is_lost_already

    def sentence(self) -> str:
        """Return the loss as a sentence without its full stop."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        if self.reason:
            return (
                f"{steps} in no checkpoint. If this member leaves, {self._going_back()}: "
                f"{self.reason}. Stay until the epoch ends, or let the owner pause the run first"
            )
        return f"{steps} in no checkpoint, and no other member has {levels_named(self.levels)} of the model"

    def loss(self) -> str:
        """Return a sentence, without its full stop, that the steps are lost now."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        if self.reason:
            return f"{self._going_back()}: {self.reason}, and {steps} lost"
        why = "" if self.saves else ", and it saves no checkpoints"
        return f"{steps} lost: this member had the only copy of {levels_named(self.levels)} of the model{why}"

    def lost(self) -> ModelLost:
        """Return the error of a member that leaves anyway."""
        if self.copy is None:
            if self.reason:
                return ModelLost(self.loss(), _PAUSE_FIRST)
            again = _WRITABLE if self.saves else _STOP_LAST
            return _model_lost(self.steps, _NEXT_TIME if self.is_finished else again)
        steps = counted(self.steps, "trained step is", "trained steps are")
        what = "the run goes back to its checkpoint"
        if self.others_continue:
            why = f", because {self.reason}" if self.reason else ""
            what = self._going_back() + why
        how = new_run(self.copy, has_commands=self.has_commands)
        return ModelLost(
            f"{what}: {steps} only in the copy that this member saved",
            f"To keep that training, {how}",
        )

    def _going_back(self) -> str:
        return levels_go_back(self.levels, self.checkpoint_step)


def find_loss(view: View, wallet: bytes, directory: Path | None) -> ModelLost | None:
    """Return the error of a member that comes back to a finished run without its model, or None.

    None also if another member may hold the model: only that member can tell. `directory` is where
    this member writes checkpoints.
    """
    run = view.run
    steps = unsaved_steps(run, view.model)
    seat = view.members.find(wallet)
    if not steps or seat is None or not claimed_by_no_other(run, view.members, seat):
        return None
    if directory is None:
        return _model_lost(steps, _SAME_DIRECTORY + _NEXT_TIME)
    return None if _has_last_step(directory, run) else _model_lost(steps, _NEXT_TIME)


def _has_last_step(directory: Path, run: Run) -> bool:
    """Return whether the directory has a checkpoint of the last step. The chain may not name it."""
    return step_directory(
        directory, stem_of_run(directory, run.run_id, run.identity), run.trained_steps
    ).exists()


def _model_lost(steps: int, fix: str) -> ModelLost:
    return ModelLost(
        f"{counted(steps, 'trained step is', 'trained steps are')} lost: no checkpoint has "
        f"{'it' if steps == 1 else 'them'}, and no other member has all of the model",
        fix,
    )
