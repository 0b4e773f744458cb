"""The commands `server run` and `server validate-config`: host one run, and check its files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from aftermath.cli.command import command
from aftermath.cli.present import Result, facts, note
from aftermath.server.commands.options import DataConfig, MaybeRunId, State

Switch = Literal["true", "false"]
MEMBERS = "Members"


@dataclass(frozen=True)
class ListenOptions:
    """The address of the server, and the members that it admits."""

    server_port: Annotated[
        int,
        typer.Option(
            "--server-port",
            "-s",
            min=0,
            max=65535,
            help="TCP port for members. 0 picks a free one.",
        ),
    ] = 0
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. The default accepts members on other machines. 127.0.0.1 "
            "accepts only this machine."
        ),
    ] = "0.0.0.0"
    allow: Annotated[
        Path | None,
        typer.Option(
            help="File with the identities that may join, one per line. Default: all may join.",
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
            help="Withdraw members that stay disconnected for 5 seconds.", rich_help_panel=MEMBERS
        ),
    ] = "true"


@command(
    "server run",
    example="aftermath-centralized server run --state state.toml -s 20000 --save-state-dir state",
    until_interrupt=True,
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
            help="Directory for the run and its owner's key. Without it, a stop loses the run."
        ),
    ] = None,
    init_warmup_time: Annotated[
        int | None,
        typer.Option(
            min=1, help="Duration of the warm-up in seconds, instead of the file's warmup_time."
        ),
    ] = None,
    tui: Annotated[
        Switch, typer.Option(help="Show the run on a screen of tabs if the output is a terminal.")
    ] = "true",
) -> Result:
    """Host a run and serve it to its members.

    The first start creates and starts the run from the state file. A later start with the same
    --save-state-dir resumes it, even after a crash. Without --save-state-dir the run is lost when
    the server stops. Ctrl-C stops the server, which exits 0.
    """
    import asyncio

    from aftermath.server.option_files import create_state_directory, load_allowlist, load_tls
    from aftermath.server.run_owner import ensure_run, owner_cluster, owner_wallet
    from aftermath.server.screen import print_ready, watch
    from aftermath.server.server import ServerConfig, open_server
    from aftermath.server.state_file import load_served_data, load_state_file, serve_data

    chosen, file = load_state_file(state, run_id, init_warmup_time)
    served = load_served_data(data_config, file) if data_config is not None else None
    directory = create_state_directory(save_state_dir.expanduser() if save_state_dir else None)
    config = ServerConfig(
        run_id=chosen,
        host=listening.host,
        port=listening.server_port,
        state=directory,
        tls=load_tls(listening.tls_certificate, listening.tls_key),
        allowed=load_allowlist(listening.allow),
        withdraw=listening.withdraw_on_disconnect == "true",
    )
    if directory is None:
        note(
            "warning: the run is lost when this server stops. To store it, pass --save-state-dir DIR"
        )
    wallet = owner_wallet(directory)
    async with serve_data(served, listening.host), open_server(config) as server:
        async with owner_cluster(server.node, wallet) as chain:
            for sentence in await ensure_run(chain, chosen, file):
                note(f"warning: {sentence}")
        await server.listen()
        print_ready(server)
        with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C; closing may still fail
            await watch(server, tui == "true")
    return Result({}, None)


@command(
    "server validate-config",
    example="aftermath-centralized server validate-config --state state.toml --data-config data.toml",
)
def server_validate_config(
    state: State, data_config: DataConfig = None, run_id: MaybeRunId = None
) -> Result:
    """Check the files of a server without starting it.

    Checks the run's rules, its model and its tiers. With --data-config also checks the
    data, and that both files match.
    """
    from aftermath.owner.schema import shape_of
    from aftermath.server.state_file import load_served_data, load_state_file

    chosen, config = load_state_file(state, run_id)
    shape = shape_of(config)
    data = {
        "run_id": chosen,
        "num_parameters": shape.num_parameters,
        "tiers": list(shape.schema.state.widths),
        "bytes_per_round": shape.bytes_per_round,
        "total_steps": config.config.total_steps,
        "sequences": None,
    }
    if data_config is not None:
        data["sequences"] = load_served_data(data_config, config)[1].sequences
    shown = {name: value for name, value in data.items() if value is not None}
    return Result(data, facts(shown | {"bytes_per_round": shape.size_lines}))
