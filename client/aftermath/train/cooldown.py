"""Cooldown: attest the model, offer it to joiners, and keep a durable checkpoint.

Choices:
- every elected member reports the hashes of the levels it holds; a quorum per level puts them on chain;
- the snapshot for joiners is taken next; whoever joins the next epoch before it is there asks again;
- a tier-0 member with a place to save writes the full model; the chain takes it only with the attested hashes, and the
  first valid one wins. A failed save is a warning: the run does not depend on any one member's disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aftermath.model.documents import CheckpointError
from aftermath.model.hub import upload
from aftermath.model.store import save, saved_steps
from aftermath.run.accounts import Run
from aftermath.run.committee import levels_to_attest
from aftermath.run.state import CheckpointKind, RunState
from aftermath.train.context import Context
from aftermath.train.modelshare import ModelShare, snapshot
from aftermath.train.persist import fulfil
from aftermath.train.replica import Replica
from aftermath.train.traffic import report_traffic

_ATTESTED = frozenset({"DuplicateWitness", "WrongState", "NotElected", "SlotMismatch", "CooldownFull"})


@dataclass(frozen=True)
class Archive:
    """Where a tier-0 member keeps checkpoints."""

    directory: Path | None
    hub_repo: str | None
    hub_token: str | None
    keep_steps: int | None
    """How many steps to keep in the directory; None keeps all."""
    companions: Mapping[str, bytes]
    """The tokenizer's files, which go with every checkpoint."""


class Cooldown:
    """One member's cooldown of one epoch."""

    def __init__(self, context: Context, share: ModelShare, replica: Replica, archive: Archive, slot: int) -> None:
        self._ctx, self._share, self._replica = context, share, replica
        self._archive, self._slot = archive, slot

    async def live(self, run: Run) -> None:
        """Go through cooldown; returns when the run has left it."""
        hashes = await self._ctx.compute(self._replica.hashes)
        self._ctx.events.emit("cooldown", epoch=run.epoch, step=run.step, hashes=hashes)
        await self._attest(run, hashes)
        replica, schema, tier = self._replica, self._ctx.schema, self._ctx.tier
        self._share.offer(await self._ctx.compute(lambda: snapshot(replica.params, schema, tier, run.step)))
        if self._ctx.tier == 0 and (self._archive.directory or self._archive.hub_repo):
            await self._keep(run, hashes)
        report_traffic(self._ctx)
        await self._ctx.feed.until(lambda now: self._over(run, now))

    def _over(self, started: Run, now: Run) -> bool:
        return now.epoch != started.epoch or now.state is not RunState.COOLDOWN

    async def _attest(self, run: Run, hashes: dict[int, bytes]) -> None:
        elected = levels_to_attest(run, await self._ctx.chain.members(), self._slot)
        if elected:
            await fulfil(
                self._ctx,
                "the attestation of the model",
                lambda: self._ctx.chain.attest(self._slot, {level: hashes[level] for level in elected}),
                wanted=lambda: not self._over(run, self._ctx.feed.run),
                done_if=_ATTESTED,
            )

    async def _keep(self, run: Run, hashes: dict[int, bytes]) -> None:
        """Save, and have the chain point to it once the levels are attested."""
        try:
            saved = await self._ctx.compute(lambda: self._save(run))
        except (CheckpointError, OSError) as error:
            self._ctx.events.emit("warning", message=f"no checkpoint of step {run.step} was kept: {error}")
            return
        kind, repo, _ = saved
        self._ctx.events.emit("checkpoint", step=run.step, path=repo)
        model = await self._ctx.chain.model()
        if kind is CheckpointKind.HUB or model.checkpoint.kind is CheckpointKind.LOCAL:
            await self._point_chain_to(run, saved, hashes)  # else others could not read this machine's directory
        named = Path((await self._ctx.chain.model()).checkpoint.repo)
        await self._ctx.compute(lambda: self._prune(run.run_id, named))

    def _prune(self, run_id: str, named: Path) -> None:
        """Remove old steps, but never the one the chain names: whoever returns to this run needs it."""
        if self._archive.directory is None or self._archive.keep_steps is None:
            return
        for old in saved_steps(self._archive.directory, run_id)[: -self._archive.keep_steps]:
            if old.resolve() != named:
                shutil.rmtree(old, ignore_errors=True)

    async def _point_chain_to(self, run: Run, saved: tuple[CheckpointKind, str, str], hashes: dict[int, bytes]) -> None:
        everything = (1 << run.levels) - 1
        now = await self._ctx.feed.until(lambda r: r.levels_attested == everything or self._over(run, r))
        if now.levels_attested != everything or now.attested_step != run.step:
            return
        await fulfil(
            self._ctx,
            "the checkpoint",
            lambda: self._ctx.chain.checkpoint(*saved, [hashes[level] for level in range(run.levels)]),
            wanted=lambda: self._ctx.feed.run.state is RunState.COOLDOWN,
            done_if=frozenset({"CheckpointNotNewer"}),
        )

    def _save(self, run: Run) -> tuple[CheckpointKind, str, str]:
        """Write the checkpoint, and upload it if there is a repository for it; its kind, place and revision."""
        with tempfile.TemporaryDirectory(prefix="aftermath-") as temporary:
            place = save(
                self._archive.directory or Path(temporary),
                self._replica.params,
                self._ctx.schema.config,
                run_id=run.run_id,
                step=run.step,
                companions=self._archive.companions,
                keep_steps=None,
            )
            if self._archive.hub_repo is None:
                return CheckpointKind.LOCAL, str(place.resolve()), ""
            revision = upload(
                place, self._archive.hub_repo, token=self._archive.hub_token, message=f"{run.run_id} step {run.step}"
            )
            return CheckpointKind.HUB, self._archive.hub_repo, revision
