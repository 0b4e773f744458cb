"""`join-authorization-delete`: the join authority takes an authorization back."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.cli.command import command
from aftermath.cli.options import OneRun, SigningOptions
from aftermath.cli.present import Result, facts, note, renamed

_SIGN = "Sign with the key of the join authority that granted it, or name another with --authorizer"


@command(
    "join-authorization-delete",
    example="aftermath-solana join-authorization-delete -w grantor.json --authorizer GRANTEE_PUBKEY",
)
async def join_authorization_delete(
    options: SigningOptions,
    authorizer: Annotated[
        str | None,
        typer.Option("--authorizer", help="Whose it is: a public key, or its key file; without it, everybody's."),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Withdraw an authorization, and close it when that is allowed.

    It is invalid at once. When it is closed its rent goes back to who paid it; one with delegates can be closed 30 days
    later.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.chain.refusals import CLOSED_TOO_EARLY, sol, told
    from aftermath.cli.authorization import present, scope_of
    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused

    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with sign_in(options) as chain:
        grantor, scope = chain.wallet.pubkey, scope_of(chain, run_id)
        ix = chain.authorizer.ix(grantor)
        found = present(await chain.authorization(grantor, grantee, scope), grantor, grantee, _SIGN)
        withdrawn = [ix.grantor_update(grantee, False, scope)] if found.active else []
        before = await chain.balance(grantor)
        closed = not (found.active and found.delegates)  # or it is too early for that
        try:
            signatures = await chain.sender.send_packed([*withdrawn, *([ix.close(found)] if closed else [])])
        except Refused as error:
            if error.name != CLOSED_TOO_EARLY:
                raise
            closed = False
            signatures = await chain.sender.send_packed(withdrawn)
        returned = await chain.balance(grantor) - before
        if not closed:
            note(told(CLOSED_TOO_EARLY)[0])
    data = {
        "address": str(found.address),
        "active": False,
        "closed": closed,
        "lamports_returned": returned,
        "signatures": [str(signature) for signature in signatures],
    }
    return Result(data, facts(renamed(data, "lamports_returned", "came back", sol(returned))))
