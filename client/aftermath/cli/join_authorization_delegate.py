"""`join-authorization-delegate`: an authorized key names the keys that may join on its behalf."""

from __future__ import annotations

from typing import Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import OneRun, SigningOptions
from aftermath.cli.present import Result, facts


@command(
    "join-authorization-delegate",
    example="aftermath-solana join-authorization-delegate -w grantee.json --join-authority GRANTOR_PUBKEY "
    "--delegates-clear --delegates-added delegate.json",
)
async def join_authorization_delegate(
    options: SigningOptions,
    join_authority: Annotated[
        str, typer.Option("--join-authority", help="Who authorized the wallet: a public key, or its key file.")
    ],
    delegates_clear: Annotated[
        bool, typer.Option("--delegates-clear", help="First remove all delegates named before.")
    ] = False,
    delegates_added: Annotated[
        list[str] | None,
        typer.Option("--delegates-added", help="A key that may join: a public key, or its key file. Can be repeated."),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Set the keys that may join on behalf of an authorized key.

    The wallet is the authorized key (grantee).
    """
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import described, present, scope_of
    from aftermath.cli.connection import sign_in

    if not delegates_clear and not delegates_added:
        raise UsageError("nothing to change was given", "Pass --delegates-added KEY or --delegates-clear")
    added = [public_key(text) for text in delegates_added or []]
    grantor = public_key(join_authority)
    async with sign_in(options) as chain:
        grantee, scope = chain.wallet.pubkey, scope_of(chain, run_id)
        before = present(await chain.authorization(grantor, grantee, scope), grantor, grantee)
        kept = () if delegates_clear else before.delegates
        new = [key for key in dict.fromkeys(added) if key not in kept]
        steps = chain.authorizer.ix(grantee).delegation(before, clear=delegates_clear, added=new)
        if new or delegates_clear:
            size = chain.authorizer.size(grantor, grantee, len(kept) + len(new), scope=scope)
            await chain.sender.afford(steps, size)
        signatures = await chain.sender.send_packed(steps) if new or delegates_clear else []
        found = present(await chain.authorization(grantor, grantee, scope), grantor, grantee)
    data = described(found, run_id) | {"signatures": [str(signature) for signature in signatures]}
    return Result(data, facts(data))
