"""The command `watch`: the live state of a server's run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import JsonLines, RunId
from aftermath.cli.present import Result
from aftermath.server.commands.options import ServerOptions, trusted


@command(
    "watch", example="aftermath-centralized watch --run-id demo --server-addr 192.168.1.5:20000"
)
async def watch(server: ServerOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow where the run of a server stands, until it is finished, or until Ctrl-C.

    On a terminal it has a screen of tabs, which Tab turns over and q closes; elsewhere a line is
    printed whenever something has changed. Take no identity of a member that runs: the server would
    think it here after it has gone.
    """
    from aftermath.cli.run_view import followed
    from aftermath.server.client_backend import visiting

    where = ("Network", {"server": server.server_addr})
    async with visiting(
        server.server_addr, trusted(server), server.identity_secret_key_path, run_id
    ) as coordinator:
        return await followed(coordinator, run_id, where, as_json=json_output)
