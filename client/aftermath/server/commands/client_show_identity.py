"""The command `client show-identity`: print the public key of an identity."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import checked_run_id, shared
from aftermath.cli.present import Result, facts
from aftermath.server.commands.options import Identity


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
