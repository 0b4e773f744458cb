"""`predownload`: fetch a run's model and data before joining, so that the warm-up does not wait for
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aftermath.cli.command import command
from aftermath.cli.options import AccessOptions, ClusterOptions, RunId, Tier
from aftermath.cli.present import Result, facts

if TYPE_CHECKING:
    from aftermath.cli.findings import Subject


@command("predownload", example="aftermath-solana predownload --run-id demo --matformer-tier 1")
async def predownload(
    options: ClusterOptions,
    run_id: RunId,
    matformer_tier: Tier = 0,
    *,
    files: AccessOptions,
) -> Result:
    """Fetch a run's model and check its data before joining.

    Loads the model once, so that a damaged or unsuitable checkpoint is found now and not in the
    warm-up.
    """
    from aftermath.cli.connection import connect
    from aftermath.cli.findings import Subject
    from aftermath.cli.run_checks import read_run

    subject = Subject(tier=matformer_tier, files=files, run_id=run_id)
    async with connect(options) as chain:
        subject.chain = chain
        await read_run(subject)
    return await fetch_run_files(subject)


async def fetch_run_files(subject: Subject) -> Result:
    """Check and fetch what a run trains with. Raises the first refusal."""
    import math

    from aftermath.cli.check_list import examine
    from aftermath.config.chain_values import source_of
    from aftermath.model.checkpoint import load
    from aftermath.model.run_checkpoint import resolve
    from aftermath.rules.state import CheckpointKind

    findings = await examine(subject, ("configured", "model", "tier", "data"))
    for _, finding in findings:
        if finding.error is not None:
            raise finding.error
    assert subject.view is not None
    assert subject.schema is not None
    assert subject.tier is not None
    model = subject.view.model
    access = subject.access()
    directory = resolve(
        model.checkpoint,
        tier=subject.tier,
        access=access,
        momentum=bool(model.optimizer.outer_momentum),
    )
    shapes = subject.schema.state.config.parameter_shapes(subject.tier)
    if (
        model.checkpoint.kind is not CheckpointKind.DUMMY
    ):  # a dummy checkpoint has a shape but no weights to fetch
        load(directory, subject.tier)
    path = source_of(model.data_location).local_path()
    data = {
        "run_id": subject.run_id,
        "model": str(directory),
        "tier": subject.tier,
        "parameters": sum(map(math.prod, shapes.values())),
        "data": str(access.data_place(path)) if path else model.data_location.primary,
        "sequences": subject.sequences,
    }
    return Result(data, facts(data))
