"""`watch`: where a run stands, as it goes on."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, JsonLines, RunId
from aftermath.cli.present import Result


@command("watch", example="aftermath-solana watch --run-id demo")
async def watch(options: ClusterOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow where a run stands, until it is finished, or until Ctrl-C.

    On a terminal it has a screen of tabs, which Tab turns over and q closes; elsewhere a line is printed whenever
    something has changed.
    """
    from aftermath.chain.endpoints import shown
    from aftermath.cli.connection import connect
    from aftermath.cli.look import followed

    async with connect(options) as chain:
        return await followed(chain.coordinator, run_id, ("Chain", {"rpc": shown(options.rpc)}), as_json=json_output)
