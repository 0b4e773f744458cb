"""`predownload`: have a run's model and data at hand before joining, so that the warm-up does not wait for them."""

from __future__ import annotations

from aftermath.base.run_access import RunAccess
from aftermath.cli.command import command
from aftermath.cli.options import AccessOptions, ClusterOptions, RunId, Tier
from aftermath.cli.present import Result, facts
from aftermath.rules.model import DataLocation, Model
from aftermath.rules.run import Run
from aftermath.rules.state import DataKind


@command("predownload", example="aftermath-solana predownload --run-id demo --matformer-tier 1")
async def predownload(
    options: ClusterOptions,
    run_id: RunId,
    matformer_tier: Tier = 0,
    *,
    files: AccessOptions,
) -> Result:
    """Fetch a run's model and check its data before joining.

    The model is loaded once, so that a damaged or unsuitable checkpoint is found now and not in the warm-up.
    """
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        run, model, _ = await chain.coordinator.snapshot(run_id)
    return fetched(run, model, matformer_tier, files, is_local=chain.pool.is_local)


def fetched(run: Run, model: Model, matformer_tier: int, files: AccessOptions, *, is_local: bool) -> Result:
    """Fetch and check what a run trains with. `is_local`: the run is on a local network."""
    import math

    from aftermath.model.checkpoint import load
    from aftermath.model.resolve import resolve
    from aftermath.rules.state import CheckpointKind
    from aftermath.train.access_options import access_for
    from aftermath.train.letting_in import check_tier
    from aftermath.train.outfit import data_of, schema_of

    run_id = run.run_id
    access = access_for(files, run, on_local_network=is_local)
    schema = schema_of(model, run_id, access=access)
    check_tier(matformer_tier, model.tiers, run_id)
    directory = resolve(model.checkpoint, tier=matformer_tier, access=access)
    parameters = sum(map(math.prod, schema.state.config.parameter_shapes(matformer_tier).values()))
    if model.checkpoint.kind is not CheckpointKind.DUMMY:  # else there is nothing to fetch but its shape
        load(directory, matformer_tier)
    data = {
        "run_id": run_id,
        "model": str(directory),
        "tier": matformer_tier,
        "parameters": parameters,
        "data": _on_this_machine(model.data_location, access),
        "sequences": data_of(model, schema, access).sequences,
    }
    return Result(data, facts(data))


def _on_this_machine(location: DataLocation, access: RunAccess) -> str:
    if location.kind in (DataKind.LOCAL, DataKind.PREPROCESSED):
        return str(access.data_place(location.primary))
    return location.primary
