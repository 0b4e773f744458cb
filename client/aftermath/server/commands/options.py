"""Options that several commands of `aftermath-centralized` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.cli.options import checked_run_id, shared

if TYPE_CHECKING:
    from aftermath.server.tls_trust import TlsTrust

SERVER = "Server"

State = Annotated[
    Path, typer.Option("--state", help="The run's state.toml: a config file with a run_id.")
]
DataConfig = Annotated[
    Path | None,
    typer.Option(
        help="A data.toml. Also serve its tokens, at the address that the state file names."
    ),
]
MaybeRunId = Annotated[
    str | None,
    shared(
        "--run-id", text="The run's name, if the state file has no run_id.", check=checked_run_id
    ),
]
Identity = Annotated[
    Path | None,
    shared(
        "--identity-secret-key-path",
        "-i",
        text="File with the member's secret key of 32 bytes (client show-identity --create). "
        "Default: RAW_IDENTITY_SECRET_KEY, in hex.",
    ),
]


@dataclass(frozen=True)
class ServerOptions:
    """The server's address and certificate, and the member's key."""

    server_addr: Annotated[
        str, shared("--server-addr", text="Address of the server, HOST:PORT.", panel=SERVER)
    ]
    identity_secret_key_path: Identity = None
    tls: Annotated[
        bool,
        typer.Option(
            "--tls",
            help="Use TLS. The server's certificate must be one that this machine trusts.",
            rich_help_panel=SERVER,
        ),
    ] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            help="Use TLS. The server's certificate must be this one or signed by it (PEM file).",
            rich_help_panel=SERVER,
        ),
    ] = None


def trusted(server: ServerOptions) -> TlsTrust | None:
    """Return the accepted certificates, or None for a server without TLS. Raises UsageError."""
    from aftermath.server.tls_trust import TlsTrust

    return TlsTrust.by(server.tls_ca) if server.tls or server.tls_ca is not None else None
