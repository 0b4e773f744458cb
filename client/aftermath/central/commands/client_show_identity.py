"""`client show-identity`: the public key by which a server knows a member."""

from __future__ import annotations

from typing import Annotated

from aftermath.base.errors import UsageError
from aftermath.central.commands.options import Identity
from aftermath.cli.command import command
from aftermath.cli.options import checked_run_id, shared
from aftermath.cli.present import Result, facts


@command(
    "client show-identity",
    example="aftermath-centralized client show-identity --identity-secret-key-path secret.key",
)
def client_show_identity(
    identity_secret_key_path: Identity = None,
    run_id: Annotated[
        str | None, shared("--run-id", text="Also show the key that peers see in this run.", check=checked_run_id)
    ] = None,
) -> Result:
    """Show the public key by which a server knows a member.

    It is what a server's list of those who may join has. The secret itself is never printed.
    """
    import os

    from aftermath.central.reach import identity_of
    from aftermath.chain.wallet import IDENTITY_VARIABLE, identity_public, identity_secret

    if identity_secret_key_path is None and not os.environ.get(IDENTITY_VARIABLE):
        raise UsageError(
            "no key was given",
            "Make one: openssl rand 32 > secret.key; then pass --identity-secret-key-path secret.key",
        )
    wallet = identity_of(identity_secret_key_path)
    data = {"identity": str(wallet.pubkey), "source": wallet.source}
    if run_id is not None:
        data["p2p"] = identity_public(identity_secret(run_id, wallet, env={})).hex()
    return Result(data, facts(data))
