"""`server run`: the server of one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, note
from aftermath.server.commands.options import DataConfig, MaybeRunId, State

Switch = Literal["true", "false"]
MEMBERS = "Members"


@dataclass(frozen=True)
class ListenOptions:
    """Where the server listens, and who may come in."""

    server_port: Annotated[
        int,
        typer.Option(
            "--server-port",
            "-s",
            min=0,
            max=65535,
            help="TCP port for members; 0 picks a free one.",
        ),
    ] = 0
    host: Annotated[
        str, typer.Option(help="Address to listen at; 127.0.0.1 lets only this machine in.")
    ] = "0.0.0.0"
    allow: Annotated[
        Path | None,
        typer.Option(
            help="File of the identities that may join, one a line; without it, all.",
            rich_help_panel=MEMBERS,
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None,
        typer.Option(help="Serve with TLS and this certificate (PEM).", rich_help_panel=MEMBERS),
    ] = None
    tls_key: Annotated[
        Path | None,
        typer.Option(help="The certificate's private key (PEM).", rich_help_panel=MEMBERS),
    ] = None
    withdraw_on_disconnect: Annotated[
        Switch,
        typer.Option(
            help="Withdraw members that are gone for some seconds.", rich_help_panel=MEMBERS
        ),
    ] = "true"


@command(
    "server run",
    example="aftermath-centralized server run --state state.toml -s 20000 --save-state-dir state",
)
async def server_run(
    state: State,
    run_id: MaybeRunId = None,
    *,
    listening: ListenOptions,
    data_config: DataConfig = None,
    save_state_dir: Annotated[
        Path | None,
        typer.Option(
            help="Directory that keeps the run and its owner's key; without it, nothing is kept."
        ),
    ] = None,
    init_warmup_time: Annotated[
        int | None,
        typer.Option(
            min=1, help="Seconds of the warm-up, instead of warmup_time in the state file."
        ),
    ] = None,
    tui: Annotated[
        Switch, typer.Option(help="Show the run on a screen of tabs, if there is a terminal.")
    ] = "true",
) -> Result:
    """Keep a run, and serve it to its members.

    The first start creates the run from the state file and starts it; a start on the same
    --save-state-dir resumes where the server was, whatever ended it. Without --save-state-dir the
    run is lost when the server stops. Runs until it is stopped with Ctrl-C.
    """
    from aftermath.server.files import allowed_of, owner_directory, tls_of
    from aftermath.server.owner import establish, inside, owner_wallet
    from aftermath.server.screen import announced, watch
    from aftermath.server.served_data import data_for, serving
    from aftermath.server.server import ServerConfig, opened
    from aftermath.server.state import load_state

    chosen, file = load_state(state, run_id, init_warmup_time)
    served = data_for(data_config, file) if data_config is not None else None
    directory = owner_directory(save_state_dir.expanduser() if save_state_dir else None)
    config = ServerConfig(
        run_id=chosen,
        host=listening.host,
        port=listening.server_port,
        state=directory,
        tls=tls_of(listening.tls_certificate, listening.tls_key),
        allowed=allowed_of(listening.allow),
        withdraw=listening.withdraw_on_disconnect == "true",
    )
    if directory is None:
        note(
            "warning: nothing is kept. When this server stops, the run is lost: pass --save-state-dir DIR to keep it"
        )
    wallet = owner_wallet(directory)
    async with serving(served, listening.host), opened(config) as server:
        async with inside(server.node, wallet) as chain:
            for sentence in await establish(chain, chosen, file):
                note(f"warning: {sentence}")
        await server.listen()
        announced(server)
        await watch(server, tui == "true")
    return Result({}, None)
