"""The command `watch`: follow the status of a server's run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import JsonLines, RunId
from aftermath.cli.present import Result
from aftermath.server.commands.options import ServerOptions, trusted


@command(
    "watch",
    example="aftermath-centralized watch --run-id demo --server-addr 192.168.1.5:20000",
    until_interrupt=True,
)
async def watch(server: ServerOptions, run_id: RunId, json_output: JsonLines = False) -> Result:
    """Follow the status of a server's run until it is finished or Ctrl-C is pressed.

    On a terminal it shows a screen of tabs: Tab switches tabs, q closes it. Otherwise it prints a
    line for each change. Do not use the identity of a running member: the server would count that
    member as connected while this command runs.
    """
    from aftermath.cli.run_view import follow_run
    from aftermath.server.client_backend import open_coordinator

    network = ("Network", {"server": server.server_addr})
    async with open_coordinator(
        server.server_addr, trusted(server), server.identity_secret_key_path, run_id
    ) as coordinator:
        return await follow_run(coordinator, run_id, network, as_json=json_output)
