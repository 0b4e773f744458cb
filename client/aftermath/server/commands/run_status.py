"""The commands `show-run` and `watch`: print or follow the status of a server's run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import JsonLines, RunId
from aftermath.cli.present import Result
from aftermath.server.commands.options import ServerOptions, trusted


@command(
    "show-run",
    example="aftermath-centralized show-run --run-id demo --server-addr 192.168.1.5:20000",
)
async def show_run(server: ServerOptions, run_id: RunId) -> Result:
    """Show the state of a server's run: its progress, members, what it waits for and until when.

    Like `aftermath-solana show-run`. Without --identity-secret-key-path the command uses a
    temporary identity. If the server has a list of members, pass a listed identity.
    """
    from aftermath.cli.run_view import status_result
    from aftermath.server.client_backend import open_coordinator

    async with open_coordinator(
        server.server_addr, trusted(server), server.identity_secret_key_path, run_id
    ) as coordinator:
        return await status_result(coordinator, run_id)


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
