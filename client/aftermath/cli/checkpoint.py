"""`checkpoint`: tell the run where its durable checkpoint is.

Decided: the hashes that go on chain are computed from the files themselves, so that a wrong directory or
repository is refused before anything is sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.base.text import is_repository
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import CommandError, Result, facts

if TYPE_CHECKING:
    from aftermath.rules.model import Checkpoint, Model
    from aftermath.rules.run import Run


@command(
    "checkpoint",
    example="aftermath-solana checkpoint --run-id demo --repo someone/demo-model --revision main",
)
async def checkpoint(
    options: SigningOptions,
    run_id: RunId,
    repo: Annotated[str | None, typer.Option(help="Hugging Face repository that holds the checkpoint.")] = None,
    revision: Annotated[str, typer.Option(help="Branch, tag or commit of the repository.")] = "",
    path: Annotated[Path | None, typer.Option(help="Directory of the checkpoint, the same for every member.")] = None,
) -> Result:
    """Record where the run's durable checkpoint is.

    It must hold exactly the model that the members attested at the end of the last epoch.
    """
    import asyncio

    from aftermath.cli.connection import sign_in
    from aftermath.rules.model import Checkpoint
    from aftermath.rules.run import steps_before
    from aftermath.rules.state import CheckpointKind

    if repo is None and path is None:
        raise UsageError("say where the checkpoint is", "Pass either --repo or --path")
    if repo is not None and path is not None:
        raise UsageError("--repo and --path contradict each other", "Pass one of them")
    if repo is not None and not is_repository(repo):
        raise UsageError(
            f"--repo {repo!r} is not the name of a repository", "It is OWNER/NAME, for example --repo ada/my-model"
        )
    if path is not None:
        found = Checkpoint(CheckpointKind.LOCAL, str(path.expanduser().resolve()), "")
    else:
        found = Checkpoint(CheckpointKind.HUB, repo or "", revision)
    async with sign_in(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
        hashes = await asyncio.to_thread(attested_hashes, run, model, found)
        step = chain.coordinator.ix.checkpoint(
            run_id, kind=int(found.kind), repo=found.repo, revision=found.revision, hashes=hashes
        )
        signature = await chain.coordinator.transact(step)
        model = await chain.coordinator.model(run_id)
    data = {
        "run_id": run_id,
        "kind": model.checkpoint.kind.name.lower(),
        "repo": model.checkpoint.repo,
        "revision": model.checkpoint.revision,
        "step": steps_before(model.checkpoint_step),
        "signature": str(signature),
    }
    return Result(data, facts(data))


def attested_hashes(run: Run, model: Model, place: Checkpoint) -> list[bytes]:
    """The level hashes of the checkpoint's files. Raises CommandError when the members attested others."""
    from aftermath.model.checkpoint import load
    from aftermath.model.resolve import load_hf_config, resolve
    from aftermath.model.segments import level_hash
    from aftermath.rules.run import steps_before
    from aftermath.train.outfit import schema_from

    if run.levels_attested != (1 << run.levels) - 1:
        raise CommandError(
            f"the members of run {run.run_id} have not attested a model yet",
            "Wait for the end of the first epoch",
        )
    # Of the place that the user names alone: places of the chain are not opened with the user's word.
    state = schema_from(load_hf_config(place), model, run.run_id, f"the checkpoint {place.repo}").state
    weights = load(resolve(place), 0)
    hashes = [level_hash(weights, state, level) for level in range(state.levels)]
    different = [level for level in range(state.levels) if hashes[level] != run.level_hashes[level]]
    if different:
        raise CommandError(
            f"{place.repo} is not the model that the members attested at step {steps_before(run.attested_step)}: "
            f"level {different[0]} differs",
            "Name the checkpoint that a tier-0 member wrote at that step",
        )
    return hashes
