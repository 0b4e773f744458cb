"""`client train`: take part in the run of a server. Its options are those of `aftermath-solana train` that do not name
a cluster, a wallet or where peers are found, and how the server is reached.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from aftermath.base.errors import UsageError
from aftermath.central.commands.options import Identity
from aftermath.cli.command import OptionGroup, command
from aftermath.cli.options import SigningOptions, shared
from aftermath.cli.train import build_settings, ending_at_once, settings_options, take_part
from aftermath.train.settings import TrainSettings

SERVER = "Server"
OF_A_CLUSTER = {
    *SigningOptions.__dataclass_fields__,
    "authorizer",
    "identity_secret_key_path",
    "iroh_discovery",
    "discovery_dir",
}


@dataclass(frozen=True)
class ServerOptions:
    """Where the server is, and how it is known."""

    server_addr: Annotated[str, shared("--server-addr", text="The server, HOST:PORT.", panel=SERVER)]
    identity_secret_key_path: Identity = None
    tls: Annotated[
        bool,
        typer.Option("--tls", help="The server has a certificate that this machine trusts.", rich_help_panel=SERVER),
    ] = False
    tls_ca: Annotated[
        Path | None,
        typer.Option(help="The server has this certificate, or one that it signed (PEM).", rich_help_panel=SERVER),
    ] = None


def options() -> list[inspect.Parameter]:
    """Those of `train` that are not about a cluster."""
    return [option for option in settings_options() if option.name not in OF_A_CLUSTER]


def settings_of(**given: Any) -> TrainSettings:
    """Settings from parsed options. Nobody competes for room in a block here, so that no priority is paid for."""
    return build_settings(**given, max_priority_fee=0)


@command(
    "client train",
    example="aftermath-centralized client train --run-id demo --server-addr 192.168.1.5:20000 -i secret.key "
    "--matformer-tier 1",
    groups={"settings": OptionGroup(options, settings_of)},
)
def client_train(
    server: ServerOptions,
    settings: TrainSettings,
    json_output: Annotated[
        bool, typer.Option("--json", help="Events as JSON lines (--logs json), and an error as JSON.")
    ] = False,
) -> NoReturn:
    """Join the run of a server and train until it ends.

    As `aftermath-solana train`, but there is no chain, wallet or fee: the server knows a member by its key, and tells
    it where its peers are. Without --identity-secret-key-path the member has a new identity every time. Ctrl-C leaves
    the run and exits 0.
    """
    with ending_at_once():
        from aftermath.central.reach import reaching
        from aftermath.train.session import run_member

    def train(chosen: TrainSettings) -> None:
        run_member(chosen, reaching(server.server_addr, _tls(server), server.identity_secret_key_path))

    take_part(settings, train, as_json=json_output)


def _tls(server: ServerOptions) -> Any:
    """How the server's certificate is checked, None without one. Raises UsageError."""
    import ssl

    if not server.tls and server.tls_ca is None:
        return None
    try:
        return ssl.create_default_context(cafile=server.tls_ca)
    except (OSError, ssl.SSLError):
        raise UsageError(f"--tls-ca {server.tls_ca} is no certificate that can be read", "It is a PEM file") from None
