"""The commands `client train` and `client show-identity` of a server's member.

`client train` takes the options of `aftermath-solana train`, except those about a cluster, a wallet
and the discovery of peers.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, NoReturn

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import OptionGroup, command
from aftermath.cli.options import SigningOptions, checked_run_id, shared
from aftermath.cli.present import Result, facts
from aftermath.cli.train import build_settings, settings_options, take_part
from aftermath.server.commands.options import Identity, ServerOptions, trusted
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
    this machine makes a key for each server, run, tier and checkpoint directory, and keeps it for
    the next start. A second process of the same kind gets another key. Ctrl-C leaves the run and
    exits 0.
    """
    from aftermath.server.client_backend import server_backend
    from aftermath.train.session import run_member

    def train(chosen: TrainSettings) -> None:
        run_member(
            chosen,
            server_backend(server.server_addr, trusted(server), server.identity_secret_key_path),
        )

    take_part(settings, train, as_json=json_output)


@command(
    "client show-identity",
    example="aftermath-centralized client show-identity --create --identity-secret-key-path secret.key",
)
def client_show_identity(
    identity_secret_key_path: Identity = None,
    run_id: Annotated[
        str | None,
        shared(
            "--run-id", text="Also show the key that peers see in this run.", check=checked_run_id
        ),
    ] = None,
    create: Annotated[
        bool,
        typer.Option("--create", help="Create the secret key file first, readable only by you."),
    ] = False,
) -> Result:
    """Show the public key by which a server knows a member.

    The server's operator adds this key to the --allow file. The command never prints the secret
    key. --create makes a new key and refuses to replace a file.
    """
    import os

    from aftermath.chain.wallet import (
        IDENTITY_VARIABLE,
        create_identity,
        identity_public,
        identity_secret,
    )
    from aftermath.server.client_backend import load_identity

    if create and identity_secret_key_path is None:
        raise UsageError("--create needs a path", "Name the new file: -i secret.key")
    if create and identity_secret_key_path is not None:
        create_identity(identity_secret_key_path)
    if identity_secret_key_path is None and not os.environ.get(IDENTITY_VARIABLE):
        raise UsageError(
            "no key was given",
            "Create one: aftermath-centralized client show-identity --create -i secret.key",
        )
    wallet = load_identity(identity_secret_key_path)
    data = {"identity": str(wallet.pubkey), "source": wallet.source}
    if run_id is not None:
        data["p2p"] = identity_public(identity_secret(run_id, wallet, env={})).hex()
    return Result(data, facts(data))
