"""`show-run`: where a run stands, for people."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, RunId
from aftermath.cli.present import Result


@command("show-run", example="aftermath-solana show-run --run-id demo")
async def show_run(options: ClusterOptions, run_id: RunId) -> Result:
    """Show where a run stands: how far it is, who is in it, what it waits for and until when.

    Of each member: its seat, wallet and tier, how it stands in the epoch and whether it is elected as a witness, its
    weight and points, and in which round the chain last saw it. json-dump-run prints all that the chain knows.
    """
    from aftermath.cli.connection import connect
    from aftermath.cli.look import shown

    async with connect(options) as chain:
        return await shown(chain.coordinator, run_id)
