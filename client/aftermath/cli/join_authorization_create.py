"""`join-authorization-create`: the join authority lets a key, or everybody, join its runs."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import OneRun, SigningOptions
from aftermath.cli.present import Result, facts, note


@command(
    "join-authorization-create",
    example="aftermath-solana join-authorization-create -w grantor.json --authorizer GRANTEE_PUBKEY --run-id demo",
)
async def join_authorization_create(
    options: SigningOptions,
    authorizer: Annotated[
        str | None,
        typer.Option("--authorizer", help="Who may join: a public key, or its key file; without it, everybody."),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Let a key, or everybody, join one run of a join authority, or all of them.

    The wallet is the join authority. Without --run-id the authorization is for all its runs, those to come included.
    One that was withdrawn is made valid again. On other networks than local ones everybody may be let into one run
    only, and after its first epoch: whoever trains that decides what the model is.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import (
        check_for_everybody,
        described,
        granting,
        present,
        scope_of,
        trouble_with_grantor,
    )
    from aftermath.cli.connection import sign_in

    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with sign_in(options) as chain:
        if grantee == EVERYONE:
            await check_for_everybody(chain, run_id)
        grantor, scope = chain.wallet.pubkey, scope_of(chain, run_id)
        steps = await granting(chain, grantee, scope)
        if run_id is not None and (unmeant := await trouble_with_grantor(chain, run_id)):
            note(f"warning: {unmeant}")
        if steps:
            await chain.sender.afford(steps, chain.authorizer.size(grantor, grantee, scope=scope))
        signatures = await chain.sender.send_packed(steps)
        found = present(await chain.authorization(grantor, grantee, scope), grantor, grantee)
    data = described(found, run_id) | {"signatures": [str(signature) for signature in signatures]}
    return Result(data, facts(data))
