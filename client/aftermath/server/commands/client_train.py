"""The command `client train`: join the run of a server.

It takes the options of `aftermath-solana train`, except those about a cluster, a wallet and the
discovery of peers.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, NoReturn

import typer

from aftermath.cli.command import OptionGroup, command
from aftermath.cli.options import SigningOptions
from aftermath.cli.train import build_settings, settings_options, take_part
from aftermath.server.commands.options import ServerOptions, trusted
from aftermath.train.settings import TrainSettings

OF_A_CLUSTER = {
    *SigningOptions.__dataclass_fields__,
    "authorizer",
    "max_bond",
    "identity_secret_key_path",
    "iroh_discovery",
    "discovery_dir",
}


def options() -> list[inspect.Parameter]:
    """Return the options of `train` that are not about a cluster."""
    return [option for option in settings_options() if option.name not in OF_A_CLUSTER]


def settings_of(**given: Any) -> TrainSettings:
    """Return the settings from parsed options. A server takes no priority fee and no bond."""
    return build_settings(**given, max_priority_fee=0, max_bond=0)


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
        bool,
        typer.Option("--json", help="Print events as JSON lines, and an error as JSON."),
    ] = False,
) -> NoReturn:
    """Join the run of a server and train until it ends.

    Like `aftermath-solana train`, but without a chain, a wallet or fees. The server identifies a
    member by its key and sends it the addresses of its peers. Without --identity-secret-key-path
    this machine keeps a key for each server and run, and another one for each further process.
    Ctrl-C leaves the run and exits 0.
    """
    from aftermath.server.client_backend import server_backend
    from aftermath.train.session import run_member

    def train(chosen: TrainSettings) -> None:
        run_member(
            chosen,
            server_backend(server.server_addr, trusted(server), server.identity_secret_key_path),
        )

    take_part(settings, train, as_json=json_output)
