"""`join-authorization-read`: what the chain says about an authorization."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, OneRun
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
    run_id: OneRun = None,
) -> Result:
    """Show an authorization and its delegates."""
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import described, present, scope_of
    from aftermath.cli.connection import connect

    grantor, grantee = public_key(join_authority), public_key(authorizer) if authorizer is not None else EVERYONE
    async with connect(options) as chain:
        found = await chain.authorizer.fetch(grantor, grantee, scope_of(chain, run_id))
        data = described(present(found, grantor, grantee), run_id)
    return Result(data, facts(data))
