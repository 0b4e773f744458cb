"""`show-identity`: who this wallet is on chain and to its peers; makes the wallet's key file when asked to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import WalletOptions, checked_run_id, shared
from aftermath.cli.present import Result, facts


@dataclass(frozen=True)
class IdentityOptions(WalletOptions):
    """The wallet, and the file of the peer identity if it has one of its own."""

    identity_secret_key_path: Annotated[
        Path | None,
        shared(
            "--identity-secret-key-path",
            "-i",
            text="32-byte p2p secret key file; by default the key is derived from the wallet and the run.",
        ),
    ] = None


@command("show-identity", example="aftermath-solana show-identity -w wallet.json --run-id demo")
def show_identity(
    options: IdentityOptions,
    run_id: Annotated[
        str | None,
        shared(
            "--run-id",
            text="Also show the peer identity the wallet has in this run.",
            check=checked_run_id,
            stored="run",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option("--create", help="First make the wallet's key file, readable by you only.")
    ] = False,
) -> Result:
    """Show the wallet's public key and the identity peers see.

    Secrets are never printed. With --create this is how to get a wallet without any other tool.
    """
    from aftermath.chain.wallet import create_wallet, identity_public, identity_secret, load_wallet

    path = options.wallet_private_key_path
    if create and path is None:
        raise UsageError("--create needs a path", "Say where the key goes: -w wallet.json")
    wallet = create_wallet(path) if create and path else load_wallet(path)
    data = {"wallet": str(wallet.pubkey), "source": wallet.source}
    if run_id or options.identity_secret_key_path:
        secret = identity_secret(run_id or "", wallet, options.identity_secret_key_path)
        data["p2p"] = identity_public(secret).hex()
    return Result(data, facts(data), case="created" if create else "")
