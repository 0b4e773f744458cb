"""`list-runs`: the runs on a cluster."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions
from aftermath.cli.present import Result, listing
from aftermath.events.progress import state_words

COLUMNS = ("run", "name", "state", "epoch", "step", "of", "members", "tiers")


@command("list-runs", example="aftermath-solana list-runs --rpc http://127.0.0.1:8899")
async def list_runs(options: ClusterOptions) -> Result:
    """List the runs on a cluster."""
    from aftermath.chain.dump import plain
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        runs = await chain.coordinator.list_runs()
    data = [
        {
            "run_id": run.run_id,
            "name": model.metadata.name,
            "state": plain(run.state),
            "epoch": run.epoch,
            "step": run.trained_steps,
            "total_steps": run.config.total_steps,
            "members": members.present if members else 0,
            "tiers": model.tiers,
        }
        for run, model, members in runs
    ]
    shown = [
        [*(row | {"state": state_words(run.state.name)}).values()] for row, (run, _, _) in zip(data, runs, strict=True)
    ]
    text = listing(COLUMNS, shown) if data else "no runs on this cluster"
    return Result(data, text)
