"""`set-future-epoch-rates`: what an epoch is worth to its members."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.base.bounded import U64_MAX
from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result, facts


@command(
    "set-future-epoch-rates",
    example="aftermath-solana set-future-epoch-rates --run-id demo --earning-rate-total-shared 1000",
)
async def set_future_epoch_rates(
    options: SigningOptions,
    run_id: RunId,
    earning_rate_total_shared: Annotated[
        int | None, typer.Option(min=0, max=U64_MAX, help="Points that the members who finish an epoch share.")
    ] = None,
    slashing_rate_per_client: Annotated[
        int | None, typer.Option(min=0, max=U64_MAX, help="Points that an ejected member loses.")
    ] = None,
) -> Result:
    """Set the points that members earn and lose from the next epoch on."""
    from aftermath.cli.connection import sign_in

    if earning_rate_total_shared is None and slashing_rate_per_client is None:
        raise UsageError("no rate was given", "Pass --earning-rate-total-shared, --slashing-rate-per-client or both")
    async with sign_in(options) as chain:
        await chain.coordinator.run(run_id)  # says so if there is no such run
        signature = await chain.coordinator.set_future_epoch_rates(
            run_id, earning=earning_rate_total_shared, slashing=slashing_rate_per_client
        )
        run = await chain.coordinator.run(run_id)
    data = {
        "run_id": run_id,
        "future_earning_rate": run.future_earning_rate,
        "future_slashing_rate": run.future_slashing_rate,
        "signature": str(signature),
    }
    return Result(data, facts(data))
