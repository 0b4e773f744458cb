"""Durable checkpoints: what a tier-0 member keeps of the model at the end of an epoch, on its disk or on the Hub.

Choices:
- the file is written on the replica's thread, while nothing changes the parameters; uploading it can take longer than
  any cooldown, so that goes on beside the next epoch, and the chain is told when it is done;
- the chain takes a checkpoint only with the hashes that the members attested, and the first valid one wins;
- a failed save is a warning: the run does not depend on any one member's disk or connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aftermath.model.documents import CheckpointError
from aftermath.model.store import save, saved_steps
from aftermath.run.accounts import Run
from aftermath.run.state import CheckpointKind, RunState
from aftermath.train.context import Context
from aftermath.train.persist import fulfil
from aftermath.train.replica import Replica


@dataclass(frozen=True)
class Hub:
    """A repository to upload to."""

    repo: str
    upload: Callable[[Path, str], str]
    """Pushes a directory with a commit message; returns the commit. Raises CheckpointError."""


@dataclass(frozen=True)
class Archive:
    """Where a tier-0 member keeps checkpoints."""

    directory: Path | None
    hub: Hub | None
    keep_steps: int | None
    """How many steps to keep in the directory; None keeps all."""
    companions: Mapping[str, bytes]
    """The tokenizer's files, which go with every checkpoint."""


class Keeper:
    """Writes one member's checkpoints and has the chain name them."""

    def __init__(self, context: Context, archive: Archive) -> None:
        self._ctx, self._archive = context, archive
        self._uploading: asyncio.Task[None] | None = None
        self._sending: Path | None = None

    async def keep(self, run: Run, replica: Replica, hashes: Mapping[int, bytes]) -> None:
        """Save the model that `run` ended its epoch with; returns when the replica may change again."""
        if self._ctx.tier or not (self._archive.directory or self._archive.hub):
            return
        with contextlib.ExitStack() as held:
            try:
                directory = self._archive.directory or Path(
                    held.enter_context(tempfile.TemporaryDirectory(prefix="aftermath-"))
                )
                place = await self._ctx.compute(lambda: self._save(directory, run, replica))
            except (CheckpointError, OSError) as error:
                self._ctx.events.emit("warning", message=f"no checkpoint of step {run.step} was kept: {error}")
                return
            if self._archive.hub is not None:
                self._start_upload(self._archive.hub, place, run, hashes, held.pop_all())
        if self._archive.directory is not None:
            self._ctx.events.emit("checkpoint", step=run.step, path=str(place))
            await self._keep_local(place, run, hashes)

    async def settle(self) -> None:
        """Wait for the upload under way, if there is one."""
        if self._uploading is not None:
            await asyncio.wait([self._uploading])

    async def close(self) -> None:
        """Give up the upload under way."""
        if self._uploading is not None:
            self._uploading.cancel()
            await asyncio.gather(self._uploading, return_exceptions=True)

    # --- the disk -----------------------------------------------------------------------------------------------

    def _save(self, directory: Path, run: Run, replica: Replica) -> Path:
        place = save(
            directory,
            replica.params,
            self._ctx.schema.config,
            run_id=run.run_id,
            step=run.step,
            companions=self._archive.companions,
            keep_steps=None,
        )
        return place.resolve()

    async def _keep_local(self, place: Path, run: Run, hashes: Mapping[int, bytes]) -> None:
        """Name the directory on chain unless the run's checkpoint is one that others can reach; then tidy up."""
        named = (await self._ctx.chain.model()).checkpoint
        if self._archive.hub is None and named.kind is CheckpointKind.LOCAL:
            await self._name((CheckpointKind.LOCAL, str(place), ""), run, hashes)
            named = (await self._ctx.chain.model()).checkpoint
        await self._ctx.compute(lambda: self._prune(run.run_id, Path(named.repo)))

    def _prune(self, run_id: str, named: Path) -> None:
        """Remove old steps, but not the one on its way to the Hub, nor the one a returner needs: the chain names it."""
        if self._archive.directory is None or self._archive.keep_steps is None:
            return
        for old in saved_steps(self._archive.directory, run_id)[: -self._archive.keep_steps]:
            if old.resolve() not in (named, self._sending):
                shutil.rmtree(old, ignore_errors=True)

    # --- the Hub ------------------------------------------------------------------------------------------------

    def _start_upload(
        self, hub: Hub, place: Path, run: Run, hashes: Mapping[int, bytes], held: contextlib.ExitStack
    ) -> None:
        """Upload `place` in the background; `held` keeps it until then."""
        if self._uploading is not None and not self._uploading.done():
            held.close()
            self._ctx.events.emit(
                "warning", message=f"step {run.step} is not uploaded: the upload of an earlier one is still under way"
            )
            return
        self._sending = place
        self._uploading = asyncio.ensure_future(self._upload(hub, place, run, hashes, held))

    async def _upload(
        self, hub: Hub, place: Path, run: Run, hashes: Mapping[int, bytes], held: contextlib.ExitStack
    ) -> None:
        with held:
            try:
                message = f"{run.run_id} step {run.step}"
                commit = await self._ctx.upload(lambda: hub.upload(place, message))
            except (CheckpointError, OSError) as error:
                self._ctx.events.emit("warning", message=f"step {run.step} was not uploaded: {error}")
                return
            finally:
                self._sending = None
        self._ctx.events.emit("checkpoint", step=run.step, path=f"{hub.repo}@{commit}")
        await self._name((CheckpointKind.HUB, hub.repo, commit), run, hashes)

    # --- the chain ----------------------------------------------------------------------------------------------

    async def _name(self, place: tuple[CheckpointKind, str, str], run: Run, hashes: Mapping[int, bytes]) -> None:
        """Point the chain to a checkpoint once all levels are attested, for as long as no later epoch has ended."""
        everything = (1 << run.levels) - 1

        def passed(now: Run) -> bool:
            later = now.epoch > run.epoch and now.state is RunState.COOLDOWN
            return later or now.epoch > run.epoch + 1 or (now.epoch > run.epoch and now.levels_attested != everything)

        now = await self._ctx.feed.until(lambda r: r.levels_attested == everything or passed(r))
        if passed(now) or now.attested_step != run.step:
            return
        await fulfil(
            self._ctx,
            "the checkpoint",
            lambda: self._ctx.chain.checkpoint(*place, [hashes[level] for level in range(run.levels)]),
            wanted=lambda: not passed(self._ctx.feed.run),
            done_if=frozenset({"CheckpointNotNewer"}),
        )
