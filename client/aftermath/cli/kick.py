"""`kick`: take a wallet out of the line for the next epoch, or bar it from the run."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import RunId, SigningOptions
from aftermath.cli.present import Result, facts


@command("kick", example="aftermath-solana kick --run-id demo --wallet WALLET_PUBKEY --bar")
async def kick(
    options: SigningOptions,
    run_id: RunId,
    wallet: Annotated[
        str, typer.Option("--wallet", "--address", help="The wallet to remove: a public key, or its key file.")
    ],
    bar: Annotated[bool, typer.Option("--bar", help="It may not ask for a place again.")] = False,
) -> Result:
    """Take a wallet out of the next epoch, or bar it from the run.

    The wallet that signs is the run's owner or its join authority. A running epoch goes on as it is. Without --bar the
    wallet may ask for a place again; that also lifts a bar.
    """
    from aftermath.chain.memberships import membership_of
    from aftermath.chain.options import public_key
    from aftermath.cli.connection import sign_in

    whom = public_key(wallet)
    async with sign_in(options) as chain:
        signature = await chain.coordinator.kick(run_id, whom, barred=bar)
        run, _, members = await chain.coordinator.snapshot(run_id)
        held = await membership_of(chain.pool, chain.coordinator.program_id, run, whom)
    data = {
        "run_id": run_id,
        "wallet": str(whom),
        "seat": members.find(bytes(whom)),
        "barred": held is not None and held.barred,
        "signature": str(signature),
    }
    return Result(data, facts(data))
