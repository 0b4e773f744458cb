"""What is lost when a member leaves, or was lost before it came back. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.model.saved_checkpoints import stem_of_run, step_directory
from aftermath.rules.contents import claimed_by_no_other, unsaved_steps
from aftermath.rules.run import Run

SAVE_SECONDS = 60.0
"""Seconds that a stopped member has for the last results and the file.

Services wait longer before they kill it.
"""
_NEXT_TIME = (
    "In the next run, start a tier-0 member with --checkpoint-dir DIR, on a disk with enough space"
)
_SAME_DIRECTORY = (
    "If this member wrote checkpoints before, start it with the same --checkpoint-dir DIR. "
)


class ModelLost(AftermathError):
    """Trained steps that only this member had are in no checkpoint."""

    code = "model-lost"


@dataclass(frozen=True)
class Stake:
    """What would be lost if this member left now."""

    steps: int
    """Trained steps in no checkpoint."""
    levels: list[int]
    """Levels whose newest contents no other member has."""
    saves: bool
    """Whether this member can save the steps to its checkpoint directory."""
    goes_back: bool = False
    """Whether the run goes back to its checkpoint even if this member saves the steps."""
    is_copied: bool = False
    """Whether the steps are saved in a copy that the run does not use."""

    def sentence(self) -> str:
        """Return the loss as a sentence without its full stop."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        return f"{steps} in no checkpoint, and no other member has {levels_named(self.levels)} of the model"

    def loss(self) -> str:
        """Return a sentence, without its full stop, that the steps are lost now."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        why = "" if self.saves else " and no --checkpoint-dir"
        return f"{steps} lost: this member had the only copy of {levels_named(self.levels)} of the model{why}"

    def lost(self) -> ModelLost:
        """Return the error of a member that leaves anyway."""
        if not self.is_copied:
            return _model_lost(self.steps, _NEXT_TIME)
        steps = counted(self.steps, "trained step is", "trained steps are")
        return ModelLost(
            f"the run goes back to its checkpoint: {steps} only in the copy that this member saved",
            "To keep that training, start a new run from the copy: name its directory as path in "
            "[model.LLM.checkpoint.Local] of a config file",
        )


def levels_named(levels: Sequence[int]) -> str:
    """Return the levels as words: "levels 0, 1"."""
    return f"level{'s' * (len(levels) > 1)} {', '.join(map(str, levels))}"


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
