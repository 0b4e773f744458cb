"""`json-dump-run`: everything the chain knows of a run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, RunId
from aftermath.cli.present import Result
from aftermath.events.printable import json_text


@command("json-dump-run", example="aftermath-solana json-dump-run --run-id demo")
async def json_dump_run(options: ClusterOptions, run_id: RunId) -> Result:
    """Print everything the chain knows of a run, as JSON."""
    from aftermath.chain.dump import whole_run
    from aftermath.cli.connection import connect

    async with connect(options) as chain:
        data = whole_run(*await chain.coordinator.snapshot(run_id))
    return Result(data, json_text(data, indent=2))
