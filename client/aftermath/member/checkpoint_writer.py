"""Durable checkpoints: a tier-0 member saves the model at the end of an epoch.

It saves to its disk or to the Hub and records the checkpoint on chain. Every failure here is a
warning: the run does not depend on one member's disk or connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aftermath.base.concurrency import cancel, first_of
from aftermath.base.outputs import is_protected
from aftermath.coordinator.errors import Refused, Unavailable
from aftermath.events import event_types
from aftermath.member.ports import Ports, Role, Workers
from aftermath.member.retry import persist
from aftermath.model.config import ModelConfigError
from aftermath.model.json_documents import CheckpointError, HubAway
from aftermath.model.run_checkpoint import local_directory, require_place
from aftermath.model.save_checkpoint import Saved, save, scratch, sweep
from aftermath.model.saved_checkpoints import newest_saved, prune, stem_of_run, step_directory
from aftermath.p2p.transport import escaped
from aftermath.replica.replica import Replica
from aftermath.rules.model import Checkpoint, Model
from aftermath.rules.run import Run, steps_before
from aftermath.rules.state import CheckpointKind, RunState

_HUB_SECONDS = 10.0  # timeout of one check of a Hub repository; the cooldown waits for it
_AWAY_EPOCHS = 8  # epochs to skip the check of a repository after the Hub did not answer
_ATTESTED_KEPT = 2  # attested directories to keep besides --keep-steps, so the owner can name one
_NOT_ATTESTED = "CheckpointMismatch"
LONGEST_UPLOAD = 3600.0
"""Seconds after which an upload is abandoned, including its wait for the thread."""


@dataclass(frozen=True)
class Hub:
    """A repository to upload to."""

    repo: str
    upload: Callable[[Path, str], str]
    """Pushes a directory with a commit message. Returns the commit. Raises CheckpointError."""
    recordable: bool = True
    """Whether the chain can name the upload. If not, it is only a copy, and `upload` returns its
    location.
    """


@dataclass(frozen=True)
class Archive:
    """Where a tier-0 member keeps checkpoints."""

    directory: Path | None
    hub: Hub | None
    keep_steps: int | None
    """Number of steps to keep in the directory. None keeps all."""
    companions: Mapping[str, bytes]
    """The tokenizer's files, which go with every checkpoint."""
    read_hub: Callable[[Checkpoint], None]
    """Reads the config of a Hub checkpoint.

    Raises CheckpointError if it is not the run's model, HubAway if the Hub does not answer.
    """


@dataclass(frozen=True)
class _SavedModel:
    """A checkpoint on this disk, of the model with which `run` ended its epoch."""

    directory: Path
    run: Run
    hashes: Mapping[int, bytes]
    scratch: Path | None
    """Directory to remove after the upload."""

    def release(self) -> None:
        if self.scratch is not None:
            shutil.rmtree(self.scratch, ignore_errors=True)


class CheckpointWriter:
    """Writes one member's checkpoints and records them on chain."""

    def __init__(self, ports: Ports, role: Role, workers: Workers, archive: Archive) -> None:
        self._ports = ports
        self._role = role
        self._workers = workers
        self._archive = archive
        self._uploading: asyncio.Task[None] | None = None
        self._sending: _SavedModel | None = None
        self._next: _SavedModel | None = None
        self._checked: Checkpoint | None = None  # the last Hub checkpoint that passed the check
        # the Hub checkpoint whose check got no answer, and the epoch of that check
        self._silent_hub: tuple[Checkpoint, int] | None = None
        self._named_step = -1  # step of the chain's checkpoint when this member last kept one
        self._failed_step = -1  # step of the last warning about a failed save
        self._attested: list[Path] = []  # directories of models that members attested, newest last
        self.saved_step: int | None = None
        """Step of the newest epoch's model once it is saved to disk, or uploaded if there is no
        directory.
        """
        if archive.hub is not None and archive.directory is None:
            sweep()

    @property
    def directory(self) -> Path | None:
        """Return the directory that receives this member's checkpoints, if it writes any there."""
        return None if self._role.tier else self._archive.directory

    @property
    def keeps(self) -> bool:
        """Return whether this member writes checkpoints."""
        return not self._role.tier and bool(self._archive.directory or self._archive.hub)

    async def keep(self, run: Run, replica: Replica, hashes: Mapping[int, bytes]) -> bool:
        """Save the model of the epoch that `run` ended. Return once the replica may change again.

        Return False after a warning if writing failed. The caller may retry.
        """
        if not self.keeps:
            return True
        self.saved_step = None
        saved = await self._save(run, replica, hashes)
        if saved is None:
            return False
        if self._archive.directory is not None:
            self.saved_step = run.trained_steps
            self._ports.events.emit(
                event_types.CheckpointWritten(step=run.trained_steps, path=str(saved.directory))
            )
        late = self._sending is not None
        if self._archive.hub is not None:
            self._enqueue(self._archive.hub, saved)
        if self._archive.hub is None or not self._archive.hub.recordable or late:
            await self._record_directory(saved)
        await self._prune(saved)
        return True

    async def save_now(self, run: Run, replica: Replica) -> Path | None:
        """Save a model now. Return its directory, or None after a warning. Older checkpoints stay.

        The chain cannot record a model from the middle of an epoch, because nobody attested it.
        """
        saved = await self._save(run, replica, {})
        return None if saved is None else saved.directory

    async def record_now(self, run: Run, hashes: Mapping[int, bytes], directory: Path) -> None:
        """Record a directory that `save_now` returned, after all levels were attested."""
        await self._record_directory(_SavedModel(directory, run, hashes, scratch=None))

    async def settle(self) -> None:
        """Wait until all uploads have ended."""
        if self._uploading is not None:
            await asyncio.wait([self._uploading])

    async def close(self) -> None:
        """Cancel the running upload and the queued one."""
        if self._uploading is not None:
            await cancel([self._uploading])
        if self._next is not None:
            self._next.release()
            self._next = None

    def _warn(self, message: str) -> None:
        self._ports.events.emit(event_types.Warning(message=message, until="checkpoint"))

    # --- the disk ---------------------------------------------------------------------------------

    async def _save(
        self, run: Run, replica: Replica, hashes: Mapping[int, bytes]
    ) -> _SavedModel | None:
        """Write the checkpoint. If that fails, warn once per step and return None."""
        temporary: Path | None = None
        place: Path | None = None
        try:
            directory = self._archive.directory or (temporary := scratch())
            place = await self._write(directory, run, replica)
            return _SavedModel(place, run, hashes, temporary)
        except Exception as error:
            if self._failed_step != run.trained_steps:
                self._warn(self._failure(run, error))
            self._failed_step = run.trained_steps
            return None
        finally:
            if temporary is not None and place is None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _failure(self, run: Run, error: Exception) -> str:
        """Return the warning about a failed save. It names the newest checkpoint on the disk."""
        why, newline, fix = str(error).partition("\n")
        directory = self._archive.directory
        step = run.trained_steps
        newest = directory and newest_saved(directory, run.run_id, run.identity, most=step)
        named = f"; the newest one is {newest.resolve()}" if newest else ""
        return f"no checkpoint of step {step} was saved: {why}{named}{newline}{fix}"

    async def _write(self, directory: Path, run: Run, replica: Replica) -> Path:
        needed: set[Path] | None = None
        stem = stem_of_run(directory, run.run_id, run.identity)
        if step_directory(directory, stem, run.trained_steps).exists():
            with contextlib.suppress(Unavailable):  # move nothing if the chain is unreachable
                needed = self._needed((await self._ports.coordinator.view(fresh=True)).model)
        config = self._role.schema.state.config
        companions = self._archive.companions

        # Write on the replica's thread, so that the parameters do not change meanwhile. If this
        # step's directory holds another model, the run has gone back, by a rewind or an undone
        # epoch. Move it aside unless the chain names it.
        def write() -> Saved:
            return save(
                directory,
                replica.params,
                config,
                momentum=replica.optimizer.momentum,
                run_id=run.run_id,
                identity=run.identity,
                step=run.trained_steps,
                companions=companions,
                needed=needed,
            )

        saved = await self._workers.compute(write)
        if saved.replaced is not None:
            future = (
                "which is never removed"
                if is_protected(saved.replaced)
                else "which is removed before any other old checkpoint"
            )
            self._warn(
                f"{saved.place} held another model of step {run.trained_steps}: it was moved to {saved.replaced}, "
                f"{future}"
            )
        return saved.place.resolve()

    def _needed(self, model: Model) -> set[Path]:
        """Return the directories to keep: those waiting for the Hub, and those the chain names,
        which a returning member needs.
        """
        needed = {saved.directory for saved in (self._sending, self._next) if saved is not None}
        return needed | _directories(model, newest=1)

    async def _prune(self, newest: _SavedModel) -> None:
        """Remove old steps."""
        directory = self._archive.directory
        keep = self._archive.keep_steps
        if directory is None or keep is None:
            return
        model = (await self._ports.coordinator.view()).model
        run = newest.run
        self._note_attested(directory, run, model)
        needed = {newest.directory, *self._needed(model), *self._attested}

        def remove() -> None:
            stem = stem_of_run(directory, run.run_id, run.identity)
            # Keep our copy of every recorded step: the recorded location may be wrong, and ours the
            # only copy.
            recorded = {
                step_directory(directory, stem, steps_before(recorded_one.step))
                for recorded_one in model.recorded
                if recorded_one.exists
            }
            prune(directory, stem, run.trained_steps, keep, needed | recorded | _directories(model))

        await self._workers.compute(remove)

    def _note_attested(self, directory: Path, run: Run, model: Model) -> None:
        """Remember the newest attested directories that the chain does not name yet.

        A wrong checkpoint on chain can delay their naming.
        """
        attested = self._ports.feed.run.attested_step
        if attested <= model.checkpoint_step:
            self._attested = []
            return
        stem = stem_of_run(directory, run.run_id, run.identity)
        attested_directory = step_directory(directory, stem, steps_before(attested))
        self._attested = [
            *(one for one in self._attested if one != attested_directory),
            attested_directory,
        ][-_ATTESTED_KEPT:]

    # --- the Hub ----------------------------------------------------------------------------------

    def _enqueue(self, hub: Hub, saved: _SavedModel) -> None:
        """Queue a checkpoint for upload, next after the running one."""
        if (skipped := self._next) is not None:
            step = skipped.run.trained_steps
            self._warn(
                f"step {step} is not uploaded: an earlier upload took so long that it is outdated"
            )
            skipped.release()
        self._next = saved
        if self._uploading is None or self._uploading.done():
            self._uploading = asyncio.ensure_future(self._upload_all(hub))

    async def _upload_all(self, hub: Hub) -> None:
        """Upload queued checkpoints until the queue is empty."""
        while (saved := self._next) is not None:
            self._sending = saved
            self._next = None
            try:
                await self._upload(hub, saved)
            except Exception as error:  # nobody awaits this task, so report the error here
                coordinator = self._ports.coordinator.display_name
                step = saved.run.trained_steps
                self._warn(f"cannot record the checkpoint of step {step} on {coordinator}: {error}")
            finally:
                self._sending = None
                saved.release()

    # An upload can outlast a cooldown, so uploads run during the next epochs, one at a time. Only
    # the newest queued checkpoint is uploaded.
    async def _upload(self, hub: Hub, saved: _SavedModel) -> None:
        step = saved.run.trained_steps
        try:
            commit = await self._push(hub, saved)
        except Exception as error:
            self._warn(f"step {step} was not uploaded: {error}")
            if hub.recordable:
                await self._record_directory(saved)
            return
        self.saved_step = step
        self._ports.events.emit(
            event_types.CheckpointWritten(
                step=step, path=f"{hub.repo}@{commit}" if hub.recordable else commit
            )
        )
        if not hub.recordable:
            return
        await self._record(Checkpoint(CheckpointKind.HUB, hub.repo, commit), saved)

    async def _push(self, hub: Hub, saved: _SavedModel) -> str:
        """Upload within LONGEST_UPLOAD seconds and return the commit. Raises CheckpointError, or
        what the upload raises.
        """

        async def push() -> str | None:
            return await self._workers.upload(lambda: hub.upload(saved.directory, message))

        message = f"{saved.run.run_id} step {saved.run.trained_steps}"
        commit = await first_of(push(), self._ports.clock.sleep(LONGEST_UPLOAD))
        if commit is None:
            raise CheckpointError(f"the upload took longer than {LONGEST_UPLOAD:.0f} s")
        return commit

    # --- the chain --------------------------------------------------------------------------------

    async def _record_directory(self, saved: _SavedModel) -> None:
        """Record a local directory on chain, unless the run has a readable Hub checkpoint."""
        # A member that uploads names its directory only if the upload fails or outlasts an epoch.
        # A directory replaces a Hub location only if that location does not hold the run's model.
        # That can happen, because any tier-0 member may have named it.
        model = (await self._ports.coordinator.view()).model
        before, self._named_step = self._named_step, model.checkpoint_step
        if saved.scratch is not None or model.checkpoint_step > saved.run.step:
            return
        wrong = await self._wrong_with(model.checkpoint, saved.run.epoch)
        if model.checkpoint.kind is CheckpointKind.LOCAL or wrong is not None:
            await self._record(
                Checkpoint(CheckpointKind.LOCAL, str(saved.directory), ""),
                saved,
                model.checkpoint,
                wrong,
            )
        elif before == model.checkpoint_step < saved.run.step:
            self._warn_unnamed(saved, "no member uploaded a newer one in the last epoch")

    async def _wrong_with(self, checkpoint: Checkpoint, epoch: int) -> str | None:
        """Return why a Hub checkpoint is not the run's model.

        None if it is the run's model, or if the Hub does not answer.
        """
        if checkpoint.kind is not CheckpointKind.HUB or checkpoint == self._checked:
            return None
        if (
            self._silent_hub is not None
            and self._silent_hub[0] == checkpoint
            and epoch < self._silent_hub[1] + _AWAY_EPOCHS
        ):
            return None

        async def read() -> None:
            await self._workers.upload(lambda: self._archive.read_hub(checkpoint))
            self._checked = checkpoint

        try:
            require_place(checkpoint)
            await first_of(read(), self._ports.clock.sleep(_HUB_SECONDS))
        except HubAway:
            pass
        except (CheckpointError, ModelConfigError) as error:
            return error.message
        except Exception as error:  # a stranger may have written the files, so any error rejects it
            return f"{escaped(checkpoint.repo)} cannot be read: {type(error).__name__}: {escaped(str(error))}"
        if self._checked != checkpoint:
            self._silent_hub = checkpoint, epoch
        return None

    def _warn_unnamed(self, saved: _SavedModel, why: str) -> None:
        """Warn that the chain does not name this member's newer directory, with the fix."""
        coordinator = self._ports.coordinator.display_name
        run = saved.run
        self._warn(
            f"{coordinator} does not name {saved.directory} of step {run.trained_steps}: {why}\n"
            "Start a tier-0 member that uploads the next checkpoint: train --hub-repo OWNER/NAME. Or ask the run's "
            f"owner to name this one: aftermath-solana checkpoint --run-id {shlex.quote(run.run_id)} "
            f"--path {shlex.quote(str(saved.directory))} -w FILE"
        )

    async def _record(
        self,
        checkpoint: Checkpoint,
        saved: _SavedModel,
        replaced_one: Checkpoint | None = None,
        wrong: str | None = None,
    ) -> None:
        """Record a checkpoint on chain. Warn if the chain then names another or an older one.

        `replaced_one`: the checkpoint on chain. `wrong`: why it is not the run's model. An
        unrecorded upload is a warning, because the run then depends on a checkpoint that fewer
        members can read.
        """
        refusal = await self._offer(checkpoint, saved)
        if refusal is None:
            return
        model = (await self._ports.coordinator.view(fresh=True)).model
        newer = model.checkpoint_step - saved.run.step
        replaced = wrong is None or model.checkpoint != replaced_one
        if model.checkpoint == checkpoint or (
            newer >= 0 and checkpoint.kind is CheckpointKind.LOCAL and replaced
        ):
            return  # our reply was lost, or another member named the same directory first
        if wrong is not None:
            self._warn_unnamed(saved, f"{wrong}, and {refusal.splitlines()[0]}")
            return
        if newer == 0:
            refusal = f"it already names {model.checkpoint.repo} of step {steps_before(model.checkpoint_step)}"
        what = (
            f"{checkpoint.repo}@{checkpoint.revision}" if checkpoint.revision else checkpoint.repo
        )
        self._warn(
            f"{self._ports.coordinator.display_name} does not name {what} of step {saved.run.trained_steps}: {refusal}"
        )

    async def _offer(self, checkpoint: Checkpoint, saved: _SavedModel) -> str | None:
        """Record a checkpoint once all levels are attested. Return why that failed, or None."""
        run = saved.run
        hashes = [saved.hashes[level] for level in range(saved.run.levels)]
        now = await self._ports.feed.until(
            lambda now: _all_attested(now) or _why_rejected(run, now) is not None
        )
        if (reason := _why_rejected(run, now)) is not None:
            return reason
        try:
            recorded = await persist(
                self._ports.clock,
                lambda: self._ports.coordinator.checkpoint(
                    checkpoint.kind, checkpoint.repo, checkpoint.revision, hashes
                ),
                still_wanted=lambda: _why_rejected(run, self._ports.feed.run) is None,
            )
        except Refused as refused:
            # That fix is for a person who names another directory.
            return refused.message if refused.name == _NOT_ATTESTED else str(refused)
        return None if recorded else _why_rejected(run, self._ports.feed.run)


def _directories(model: Model, newest: int | None = None) -> set[Path]:
    """Return the directories recorded on chain: of all checkpoints, or only of the `newest`
    ones.
    """
    directories = set[Path]()
    for recorded in model.recorded[:newest]:
        if recorded.checkpoint.kind is CheckpointKind.LOCAL:
            with contextlib.suppress(CheckpointError):  # not a valid place
                directories.add(local_directory(recorded.checkpoint))
    return directories


def _all_attested(run: Run) -> bool:
    return run.levels_attested == (1 << run.levels) - 1


def _why_rejected(ended_run: Run, now: Run) -> str | None:
    """Return why the chain no longer accepts a checkpoint of `ended_run`, or None."""
    if now.epoch > ended_run.epoch + 1 or (
        now.epoch > ended_run.epoch and now.state is RunState.COOLDOWN
    ):
        return "a later epoch has ended meanwhile"
    if now.epoch > ended_run.epoch and not _all_attested(now):
        return "the epoch ended before its members had attested all levels"
    if _all_attested(now) and now.attested_step != ended_run.step:
        return f"the members attested step {steps_before(now.attested_step)}"
    return None
