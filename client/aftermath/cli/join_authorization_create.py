"""`join-authorization-create`: the join authority lets a key, or everybody, join its runs."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import SigningOptions
from aftermath.cli.present import Result, facts


@command(
    "join-authorization-create",
    example="aftermath-solana join-authorization-create -w grantor.json --authorizer GRANTEE_PUBKEY",
)
async def join_authorization_create(
    options: SigningOptions,
    authorizer: Annotated[
        str | None,
        typer.Option("--authorizer", help="Who may join: a public key, or its key file; without it, everybody."),
    ] = None,
) -> Result:
    """Let a key, or everybody, join the runs of a join authority.

    The wallet is the join authority. An authorization that was withdrawn is made valid again.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import described, granting, present
    from aftermath.cli.connection import sign_in

    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with sign_in(options) as chain:
        grantor = chain.wallet.pubkey
        steps = await granting(chain, grantee)
        if steps:
            await chain.sender.afford(steps, chain.authorizer.size(grantor, grantee))
        signatures = await chain.sender.send_packed(steps)
        found = present(await chain.authorizer.fetch(grantor, grantee), grantor, grantee)
    data = described(found) | {"signatures": [str(signature) for signature in signatures]}
    return Result(data, facts(data))
