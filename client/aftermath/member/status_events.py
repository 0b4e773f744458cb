"""One-time events about the run: its state, the owner's actions, and what it waits for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aftermath.base.errors import AftermathError
from aftermath.base.outputs import is_protected
from aftermath.base.text import counted
from aftermath.coordinator.ports import View
from aftermath.events import event_types
from aftermath.events.progress import (
    TOO_FEW_ATTESTED,
    continues_at,
    going_back,
    holder_wait,
    last_member_wait,
    lost_with_members,
)
from aftermath.events.stream import Events
from aftermath.member.unused_copies import protected_copy
from aftermath.model.saved_checkpoints import (
    newest_saved,
    saved_steps,
    stem_of_run,
    step_directory,
    step_of,
)
from aftermath.rules import bitmap, contents
from aftermath.rules.contents import never_saved
from aftermath.rules.departures import LostLevel, levels_going_back
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import CheckpointKind, MemberState, ModelSource, RunState

if TYPE_CHECKING:
    from aftermath.member.ports import Ports  # loads torch

_HALTED = {
    RunState.UNINITIALIZED: "the run has not begun; this member joins when its owner runs set-paused resume",
    RunState.PAUSED: "the run is paused; this member joins when its owner runs set-paused resume",
}
_READ_ONCE = {
    "architecture": "architecture",
    "schema_hash": "model or optimizer",
    "data_type": "data_type",
    "data_location": "data_location",
    "max_seq_len": "max_seq_len",
}
"""Fields of `Model` that a member reads once, and their names for people."""


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
        self._holder_wait: str | None = None
        self._last_member_wait: tuple[int, int] | None = None
        self._going_back: tuple[int, list[LostLevel]] | None = None
        self._lost_until: tuple[int, int] | None = None
        """(checkpoint step, run step): the steps between them are lost and were reported."""

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

    def lost_before(self, run: Run, model: Model) -> None:
        """Record which steps were lost before an epoch that began from the checkpoint."""
        start = steps_before(run.start_step)
        checkpoint_step = steps_before(model.checkpoint_step)
        from_checkpoint = run.model_source is ModelSource.CHECKPOINT and run.state.training
        if from_checkpoint and checkpoint_step <= start:
            self._lost_until = checkpoint_step, start

    def _not_yet_lost(self, run: Run, model: Model) -> int:
        """Return how many of the run's steps are in no checkpoint and were not lost before."""
        checkpoint_step = steps_before(model.checkpoint_step)
        first = checkpoint_step
        if self._lost_until is not None and self._lost_until[0] == checkpoint_step:
            first = self._lost_until[1]
        return run.trained_steps - first

    def lost(
        self,
        view: View,
        directory: Path | None,
        *,
        has_commands: bool,
        has_model: bool = False,
    ) -> None:
        """Warn that the epoch starts from older levels, because the newest ones are lost.

        `directory`: where this member writes checkpoints. A copy there that the chain does not name
        is named in the warning, and protected. `has_commands`: whether the run is on chain. False
        for a run on a server. `has_model`: whether this member has the model of the last epoch.
        """
        run = view.run
        checkpoint_step = steps_before(view.model.checkpoint_step)
        reached = run.trained_steps
        if run.model_source is ModelSource.CHECKPOINT and checkpoint_step < reached:
            steps = self._not_yet_lost(run, view.model)
            self._lost_until = checkpoint_step, reached
            if steps <= 0:
                return  # reported before
            lost = counted(steps, "step of training is", "steps of training are")
            why = "no member has the model"
            if has_model:
                why = "too few members attested the model at the end of the last epoch"
            newest = (
                f"the newest checkpoint is of step {checkpoint_step}"
                if checkpoint_step
                else "the only checkpoint is the initial model, of step 0"
            )
            older = continues_at(reached, checkpoint_step, has_commands=has_commands)
            # A copy of fewer steps is from a branch that the run left before these were trained.
            copy = _newest_copy(directory, run, reached - steps, has_commands=has_commands)
            self._events.emit(
                event_types.Warning(
                    message=f"{lost} lost: {why}, and {newest}; {older}{copy}",
                )
            )
            return  # all levels are older, and that was reported
        # Its steps since then are not counted: its holders may have left before the newest step.
        checkpoint = f"the checkpoint of step {checkpoint_step}"
        for level in (level for level in range(run.levels) if run.levels_lost >> level & 1):
            self._events.emit(
                event_types.Warning(
                    message=f"level {level} of the model goes back to {checkpoint}: {TOO_FEW_ATTESTED}",
                )
            )
        for level in contents.unattested(run):
            self._events.emit(
                event_types.Warning(
                    message=f"level {level} of the model goes back to {checkpoint}: "
                    "too few members attested the same contents at the end of the last epoch",
                )
            )

    def finished(self, run: Run, model: Model, directory: Path | None) -> None:
        """Report that the run is finished, and where its newest checkpoint is.

        `directory`: where this member writes checkpoints. Its own copy is preferred, because the
        chain may name a directory of another machine.
        """
        checkpoint_step = steps_before(model.checkpoint_step)
        repo = model.checkpoint.repo if checkpoint_step else None
        step = checkpoint_step if checkpoint_step else None
        is_directory = repo is not None and model.checkpoint.kind is CheckpointKind.LOCAL
        copy = _own_copy(directory, run, step) if is_directory else None
        self._events.emit(
            event_types.RunFinished(
                step=run.trained_steps,
                checkpoint=repo if copy is None else str(copy),
                checkpoint_step=step,
                elsewhere=is_directory and copy is None,
            )
        )

    def never_saved(self, run: Run, model: Model) -> None:
        """Warn once per epoch, and at the run's end, if the chain names no checkpoint."""
        if not never_saved(run, model) or self._warned_of == run.epoch:
            return
        in_warmup = run.state is RunState.WARMUP
        steps = self._not_yet_lost(run, model)
        if steps <= 0 or (in_warmup and run.model_source is ModelSource.CHECKPOINT):
            return  # they are lost already
        self._warned_of = run.epoch
        how = "Start a tier-0 member that saves one: train --matformer-tier 0 --checkpoint-dir DIR"
        if run.state is RunState.FINISHED:
            how = "In the next run, start a tier-0 member with --checkpoint-dir DIR"
        message = f"{lost_with_members(steps)}\n{how}"
        self._events.emit(event_types.Warning(message=message, until="checkpoint"))

    def waiting(self, run: Run, members: Members) -> bool:
        """Report once per epoch that a seated member waits for the next epoch.

        Return whether the member should leave: the epoch is the last one and makes steps. An epoch
        that is stalled or has no member left is abandoned, and then the run needs this member in
        the next one.
        """
        late = run.state is RunState.WARMUP or run.state.active
        if late and self._waits_for != run.epoch + 1:
            self._waits_for = run.epoch + 1
            self._came_at = run.trained_steps
            self._events.emit(event_types.Waiting(epoch=self._waits_for))
        # The round that a stopped last member attested closes later and makes one more step.
        steps = run.trained_steps - self._came_at
        makes_steps = steps > 1 and members.mask(MemberState.HEALTHY) != 0
        leaves = run.state.training and is_last_epoch(run) and makes_steps
        if leaves:
            self._events.emit(event_types.Waiting(epoch=self._waits_for, leaves=True))
        return leaves

    def holder_wait(self, view: View, *, has_commands: bool) -> None:
        """Warn once that the next epoch waits for an absent holder of the model."""
        why = holder_wait(view.run, view.members, view.model, has_commands=has_commands)
        if why is not None and why != self._holder_wait:
            message = f"the run waits for {why}"
            self._events.emit(event_types.Warning(message=message, until="state"))
        self._holder_wait = why

    def last_member_wait(self, view: View) -> None:
        """Warn once per epoch that it waits for its last member, which is absent."""
        run = view.run
        epoch = (run.epoch, run.epoch_started_at)
        why = last_member_wait(run, view.members, view.model)
        if why is not None and epoch != self._last_member_wait:
            message = f"the run waits for {why}"
            self._events.emit(event_types.Warning(message=message, until="state"))
            self._last_member_wait = epoch

    def levels_going_back(self, view: View, *, saves: bool) -> None:
        """Warn once per epoch and set of levels that too few of their holders are left.

        `saves`: whether this member has all levels and a directory for checkpoints.
        """
        why = going_back(view.run, view.members, view.model)
        if why is None:
            return
        lost = view.run.epoch, levels_going_back(view.run, view.members, view.model)
        if lost != self._going_back:
            self._going_back = lost
            how = _going_back_advice(view, saves=saves)
            self._events.emit(event_types.Warning(message="\n".join(filter(None, [why, how]))))

    def halt(self, run: Run) -> None:
        """Report once that the run waits for its owner."""
        why = _HALTED.get(run.state)
        if why != self._halted_by and why is not None:
            self._events.emit(event_types.Warning(message=why, until="joined"))
        self._halted_by = why

    def unreadable(self, run: Run, model: Model) -> None:
        """Warn once that this client cannot read the training spec of a halted run."""
        if run.halted and model.spec_error and model.spec_error != self._spec_error:
            message = (
                f"{model.spec_error}; this member waits, and exits if the run resumes with this training spec\n"
                "Ask the run's owner to replace it, or use the client version that wrote it"
            )
            self._events.emit(event_types.Warning(message=message, until="joined"))
        self._spec_error = model.spec_error


def _going_back_advice(view: View, *, saves: bool) -> str:
    """Return what a member that stays can do about levels that nobody can attest.

    Empty if this member saves later steps, and no earlier ones can be saved.
    """
    holds_all = (
        view.members.healthy
        and min(view.members.seats[seat].tier for seat in bitmap.seats(view.members.healthy)) == 0
    )
    if not view.run.state.training or not holds_all:
        start = "start a tier-0 member: train --matformer-tier 0 --checkpoint-dir DIR"
        return "" if saves else f"To keep later steps, {start}"
    how = "Later steps of this epoch are lost too. The owner can end it by pausing the run"
    if saves:
        how += ". This member saves a copy of its model when it is stopped or the epoch ends"
    return how


def _newest_copy(
    directory: Path | None, run: Run, last_step_kept: int, *, has_commands: bool
) -> str:
    """Protect a model with steps after `last_step_kept` that the chain does not name.

    Return lines about it and this member's other copies, or an empty string if it saved none.
    """
    if directory is None:
        return ""
    most = run.trained_steps
    copy = newest_saved(directory, run.run_id, run.identity, most=most, above=last_step_kept)
    if copy is None:
        return ""
    stem = stem_of_run(directory, run.run_id, run.identity)
    others = [
        path.name
        for path in saved_steps(directory, stem)
        if path != copy and (last_step_kept < step_of(path) <= most or is_protected(path))
    ]
    # On a line of its own: the copy's line ends with a command, which people paste.
    also = f"\nThat directory also has {', '.join(others)}, which the run does not use" * bool(
        others
    )
    return "\n" + protected_copy(copy.absolute(), has_commands=has_commands) + also


def _own_copy(directory: Path | None, run: Run, step: int | None) -> Path | None:
    """Return this member's checkpoint of a step, or None if it saved none."""
    if directory is None or not step:
        return None
    stem = stem_of_run(directory, run.run_id, run.identity)
    copy = step_directory(directory, stem, step).absolute()
    return copy if copy.is_dir() else None


def report_traffic(ports: Ports) -> None:
    """Emit one event with the bytes sent and received so far, and the coordinator's costs."""
    stats = ports.transport.stats()
    ports.events.emit(
        event_types.Traffic(
            sent=sum(stats.sent.values()),
            received=sum(stats.received.values()),
            sent_by_kind={str(kind): sent for kind, sent in stats.sent.items()},
            peers=len(ports.transport.reachable()),
            costs=dict(ports.coordinator.costs()),
            connections={
                "opened": stats.connects,
                "closed": stats.disconnects,
                "refused": stats.refused,
                "failed": stats.failed_handshakes,
            },
        )
    )


class RunChanged(AftermathError):
    """The owner changed what a run trains while this member was connected.

    A member reads the schedule and the rules again at each epoch. It opens the data and builds the
    model once, when it starts.
    """

    code = "run-changed"


def require_unchanged(first: Model, now: Model) -> None:
    """Raise RunChanged if a member that started with `first` cannot train `now`."""
    changed = [
        name for field, name in _READ_ONCE.items() if getattr(first, field) != getattr(now, field)
    ]
    if changed:
        raise RunChanged(
            f"the run's owner changed its {', '.join(changed)} while this member was connected",
            "Restart train with the same options to read the new values",
        )


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
