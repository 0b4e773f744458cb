"""`predownload`: have a run's model and data at hand before joining, so that the warm-up does not wait for them."""

from __future__ import annotations

from pathlib import Path

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, RunId, Tier
from aftermath.cli.present import Result, facts


@command("predownload", example="aftermath-solana predownload --run-id demo --matformer-tier 1")
async def predownload(
    options: ClusterOptions,
    run_id: RunId,
    matformer_tier: Tier = 0,
) -> Result:
    """Fetch a run's model and check its data before joining.

    The model is loaded once, so that a damaged or unsuitable checkpoint is found now and not in the warm-up.
    """
    import math

    from aftermath.cli.connection import connect
    from aftermath.model.checkpoint import load
    from aftermath.model.resolve import resolve
    from aftermath.rules.state import CheckpointKind
    from aftermath.train.letting_in import check_tier
    from aftermath.train.outfit import data_of, schema_of

    async with connect(options) as chain:
        model = await chain.coordinator.model(run_id)
    schema = schema_of(model, run_id)
    check_tier(matformer_tier, model.tiers, run_id)
    directory = resolve(model.checkpoint, tier=matformer_tier)
    parameters = sum(map(math.prod, schema.state.config.parameter_shapes(matformer_tier).values()))
    if model.checkpoint.kind is not CheckpointKind.DUMMY:  # else there is nothing to fetch but its shape
        load(directory, matformer_tier)
    data = {
        "run_id": run_id,
        "model": str(directory),
        "tier": matformer_tier,
        "parameters": parameters,
        "data": _on_this_machine(model.data_location.primary),
        "sequences": data_of(model, schema).sequences,
    }
    return Result(data, facts(data))


def _on_this_machine(path: str) -> str:
    return str(Path(path).expanduser().absolute())
