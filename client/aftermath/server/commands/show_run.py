"""The command `show-run`: print the status of a server's run."""

from __future__ import annotations

from aftermath.cli.command import command
from aftermath.cli.options import RunId
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
