"""What is lost when a member leaves, or was lost before it came back. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from aftermath.base.errors import AftermathError
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.events.progress import levels_go_back, levels_named, named_checkpoint
from aftermath.member.unused_copies import new_run
from aftermath.model.saved_checkpoints import stem_of_run, step_directory
from aftermath.rules import bitmap
from aftermath.rules.contents import begins_from_checkpoint, claimed_by_no_other, unsaved_steps
from aftermath.rules.departures import has_gone_back, reached_steps
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before

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
_PAUSE_SOON = "The owner pauses the run at the end of this epoch, so stay until then"
_UNTIL_PAUSED = "Next time stay until the owner's pause has begun"
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
        """Return the number of these steps. `step`: trained steps. None: those that the run reaches
        with its running round.

        0 between epochs if the next one begins from the checkpoint: then they are lost already.
        """
        if has_gone_back(run):
            return 0
        reached = reached_steps(run) if step is None else step
        steps = unsaved_steps(replace(run, step=reached + 1), model)
        if self._gone_back is not None and self._gone_back[0] == model.checkpoint_step:
            steps -= self._gone_back[1]
        return steps


@dataclass(frozen=True)
class SavedCopy:
    """A copy of the model that a member saved and the run does not use."""

    path: Path
    step: int
    """Trained steps in it."""


@dataclass(frozen=True)
class Stake:
    """What would be lost if this member left now."""

    steps: int
    """Trained steps in no checkpoint that the chain names."""
    levels: list[int]
    """Levels that no other member has, or that the members that stay cannot attest."""
    saves: bool
    """Whether this member can save the steps to its checkpoint directory."""
    goes_back: bool = False
    """Whether these levels go back to the checkpoint even if this member saves the steps."""
    others_continue: bool = False
    """Whether other members continue with the other levels."""
    checkpoint_step: int = 0
    copy: SavedCopy | None = None
    """The copy that this member saved and the run does not use."""
    copied: int = 0
    """How many of `steps` are in the copy."""
    has_commands: bool = True
    """Whether the run is on chain. False for a run on a server."""
    is_finished: bool = False
    """Whether the run is finished, so that nobody can train the steps again."""
    reason: str = ""
    """Why other members that have these levels lose them too, as a clause. Empty if none has."""
    is_lost_already: bool = False
    """Whether the levels go back even if this member stays."""
    is_pausing: bool = False
    """Whether the owner's pause begins at the end of this epoch."""
    has_full_peer: bool = False
    """Whether another member with the whole model took part (see `has_full_peer`)."""
    saves_only_copy: bool = False
    """Whether that save is only a copy, because other members stay in the epoch."""
    is_between_epochs: bool = False
    """Whether the epoch is over, so that the members need not have stayed longer in it."""

    @property
    def costs_others(self) -> bool:
        """Whether other members lose their training if this one leaves. A copy does not help."""
        return bool(self.reason) and not self.is_lost_already

    @property
    def saves_if_it_stays(self) -> bool:
        """Whether the run keeps the steps of this last holder if it stays in the epoch."""
        return self.saves_only_copy and not self.is_lost_already

    def sentence(self) -> str:
        """Return the loss as a sentence without its full stop."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        if self.reason:
            return (
                f"{steps} in no checkpoint. If this member leaves, {self._going_back()}: "
                f"{self.reason}. {self._how_to_stay()}"
            )
        return (
            f"{steps} in no checkpoint, and no other member has {levels_named(self.levels)} of the "
            f"model. If this member leaves, {self._continues_with()}"
            f"{f'. {self._how_to_stay()}' * (self.saves_if_it_stays or self.is_pausing)}"
        )

    def _how_to_stay(self) -> str:
        if self.is_pausing:
            return _PAUSE_SOON
        return "Stay until the epoch ends, or let the owner pause the run first"

    def loss(self) -> str:
        """Return a sentence, without its full stop, that the steps are lost now."""
        steps = counted(self.steps, "trained step is", "trained steps are")
        if self.reason:
            return f"{self._going_back()}: {self.reason}, and {steps} lost"
        why = "" if self.saves else ", and it saves no checkpoints"
        return (
            f"{steps} lost: this member had the only copy of {levels_named(self.levels)} of the "
            f"model{why}; {self._continues_with()}"
        )

    def lost(self) -> ModelLost:
        """Return the error of a member that leaves anyway."""
        if self.copy is not None:
            how = new_run(self.copy.path, has_commands=self.has_commands)
            return ModelLost(self._lost_but_copied(), f"To keep that training, {how}")
        if self.reason:
            return ModelLost(self.loss(), self._how_to_lose_nothing())
        levels = f"{levels_named(self.levels)} of the model"
        return ModelLost(
            f"{_in_no_checkpoint(self.steps)}, and no member that stays has {levels}; "
            f"{self._continues_with()}",
            self._how_to_lose_nothing(),
        )

    def _lost_but_copied(self) -> str:
        """Return which steps are lost for the run, and how many of them the copy has."""
        what = self._continues_with()
        if self.others_continue and self.reason:
            what += f", because {self.reason}"
        steps = counted(self.steps, "trained step is", "trained steps are")
        if self.copied == self.steps:
            return f"{what}: {steps} only in the copy that this member saved"
        return (
            f"{what}: {steps} lost, and the copy that this member saved has {self.copied} of them"
        )

    def _how_to_lose_nothing(self) -> str:
        if self.is_finished:
            return _NEXT_TIME
        if self.saves and not self.reason:
            return _WRITABLE  # the save failed
        stay = _UNTIL_PAUSED if self.is_pausing else _PAUSE_FIRST
        if self.is_between_epochs:
            stay = _STOP_LAST
        if self.has_full_peer:
            return f"{stay}. Tier-0 members with a --checkpoint-dir may have saved a copy"
        return stay if self.reason else _STOP_LAST

    def _continues_with(self) -> str:
        """Return a clause that says with which model the run continues."""
        if self.others_continue:
            return self._going_back()
        verb = "ends with" if self.is_finished else "goes back to"
        return f"the run {verb} {named_checkpoint(self.checkpoint_step)}"

    def _going_back(self) -> str:
        return levels_go_back(self.levels, self.checkpoint_step)


def has_full_peer(view: View, wallet: bytes) -> bool:
    """Return whether another member with the whole model took part in the running epoch.

    Between epochs, the last one counts.
    """
    run = view.run
    me = view.members.find(wallet)
    took_part = bitmap.seats(run.began | run.finishers)
    return any(seat != me and view.members.seats[seat].tier == 0 for seat in took_part)


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
    if directory is not None and _has_last_step(directory, run):
        return None
    return ModelLost(
        f"{_in_no_checkpoint(steps)}, and no other member has all of the model; the run ended with "
        f"{named_checkpoint(steps_before(view.model.checkpoint_step))}",
        _NEXT_TIME if directory is not None else _SAME_DIRECTORY + _NEXT_TIME,
    )


def _has_last_step(directory: Path, run: Run) -> bool:
    """Return whether the directory has a checkpoint of the last step. The chain may not name it."""
    return step_directory(
        directory, stem_of_run(directory, run.run_id, run.identity), run.trained_steps
    ).exists()


def _in_no_checkpoint(steps: int) -> str:
    lost = counted(steps, "trained step is", "trained steps are")
    return f"{lost} lost: no checkpoint has {'it' if steps == 1 else 'them'}"
