"""Options that several commands of `aftermath-centralized` take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.cli.options import checked_run_id, shared

if TYPE_CHECKING:
    from aftermath.server.trust import Trust

SERVER = "Server"

State = Annotated[
    Path, typer.Option("--state", help="The run's state.toml: a run's config file, and its run_id.")
]
DataConfig = Annotated[
    Path | None,
    typer.Option(
        help="A data.toml: serve these tokens next to the run, at the address that the state file names."
    ),
]
MaybeRunId = Annotated[
    str | None,
    shared(
        "--run-id", text="The run's name, if the state file does not say it.", check=checked_run_id
    ),
]
Identity = Annotated[
    Path | None,
    shared(
        "--identity-secret-key-path",
        "-i",
        text="The member's secret key, 32 bytes (client show-identity --create); else RAW_IDENTITY_SECRET_KEY, in hex.",
    ),
]


@dataclass(frozen=True)
class ServerOptions:
    """Where the server is, and how it is known."""

    server_addr: Annotated[
        str, shared("--server-addr", text="The server, HOST:PORT.", panel=SERVER)
    ]
    identity_secret_key_path: Identity = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="The server has a certificate that this machine trusts.",
            rich_help_panel=SERVER,
        ),
    ] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="The server has this certificate, or one that it signed (PEM).",
            rich_help_panel=SERVER,
        ),
    ] = None


def trusted(server: ServerOptions) -> Trust | None:
    """How the server's certificate is checked, None without one. Raises UsageError."""
    from aftermath.server.trust import Trust

    return Trust.by(server.tls_ca) if server.tls or server.tls_ca is not None else None
