"""`join-authorization-read`: what the chain says about an authorization."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions
from aftermath.cli.present import Result, facts


@command(
    "join-authorization-read",
    example="aftermath-solana join-authorization-read --join-authority GRANTOR_PUBKEY --authorizer GRANTEE_PUBKEY",
)
async def join_authorization_read(
    options: ClusterOptions,
    join_authority: Annotated[
        str, typer.Option("--join-authority", help="Who granted it: a public key, or its key file.")
    ],
    authorizer: Annotated[
        str | None, typer.Option("--authorizer", help="Whom it admits: a public key, or its key file; else everybody.")
    ] = None,
) -> Result:
    """Show an authorization and its delegates."""
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import described, present
    from aftermath.cli.connection import connect

    grantor, grantee = public_key(join_authority), public_key(authorizer) if authorizer is not None else EVERYONE
    async with connect(options) as chain:
        data = described(present(await chain.authorizer.fetch(grantor, grantee), grantor, grantee))
    return Result(data, facts(data))
