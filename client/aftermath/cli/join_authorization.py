"""Commands that grant, show, delegate and withdraw authorizations to join a run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import ClusterOptions, OneRun, SigningOptions
from aftermath.cli.present import CommandError, Result, facts, note, renamed

if TYPE_CHECKING:
    from solders.pubkey import Pubkey

    from aftermath.cli.connection import Cluster


@command(
    "join-authorization-create",
    example="aftermath-solana join-authorization-create -w grantor.json --authorizer GRANTEE_PUBKEY --run-id demo",
)
async def join_authorization_create(
    options: SigningOptions,
    authorizer: Annotated[
        str | None,
        typer.Option(
            "--authorizer", help="Who may join: a public key or a key file. By default everybody."
        ),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Let a key, or everybody, join one run or all runs of a join authority.

    The wallet is the join authority. Without --run-id the authorization covers all its runs, also
    future ones. This renews a withdrawn authorization. Outside local networks you can open one run
    to everybody only after its first epoch, whose members decide what the model is.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import (
        authorization_data,
        authorization_rows,
        check_may_open,
        missing_grants,
        require_authorization,
        scope_of,
        warning_about_grantor,
    )
    from aftermath.cli.connection import sign_in

    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with sign_in(options) as chain:
        if grantee == EVERYONE:
            await check_may_open(chain, run_id)
        grantor = chain.wallet.pubkey
        scope = scope_of(chain, run_id)
        steps = await missing_grants(chain, grantee, scope)
        if run_id is not None and (warning := await warning_about_grantor(chain, run_id, grantor)):
            note(f"warning: {warning}")
        if steps:
            await chain.sender.afford(steps, chain.authorizer.size(grantor, grantee, scope=scope))
        signatures = await chain.sender.send_packed(steps)
        authorization = require_authorization(
            await chain.authorization(grantor, grantee, scope), grantor, grantee
        )
        await _warn_about_others(chain, grantor, grantee, run_id)
    data = authorization_data(authorization, run_id) | {
        "signatures": [str(signature) for signature in signatures]
    }
    return Result(data, facts(authorization_rows(data)))


async def _warn_about_others(
    chain: Cluster, grantor: Pubkey, grantee: Pubkey, run_id: str | None
) -> None:
    """Print a warning if another authorization opens the run, or all runs, to everybody."""
    from aftermath.chain.addresses import EVERYONE
    from aftermath.cli.authorization import authorization_sentence, wider_authorization

    wider = await wider_authorization(chain, grantor, grantee, run_id)
    if wider is not None and wider.grantee == EVERYONE:
        note(f"warning: everybody may join: {authorization_sentence(wider, run_id)}")


@command(
    "join-authorization-read",
    example="aftermath-solana join-authorization-read --join-authority GRANTOR_PUBKEY --authorizer GRANTEE_PUBKEY",
)
async def join_authorization_read(
    options: ClusterOptions,
    join_authority: Annotated[
        str, typer.Option("--join-authority", help="Who granted it: a public key or a key file.")
    ],
    authorizer: Annotated[
        str | None,
        typer.Option(
            "--authorizer", help="Whom it admits: a public key or a key file. By default everybody."
        ),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Show an authorization and its delegates.

    If the run has none of its own, shows the one for all runs of the join authority.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import (
        GRANT_FIX,
        authorization_data,
        authorization_rows,
        authorization_sentence,
        missing_sentence,
        scope_of,
        warning_about_grantor,
        wider_authorization,
    )
    from aftermath.cli.connection import connect

    grantor = public_key(join_authority)
    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with connect(options) as chain:
        if run_id is not None and (warning := await warning_about_grantor(chain, run_id, grantor)):
            note(f"warning: {warning}")
        authorization = await chain.authorizer.fetch(grantor, grantee, scope_of(chain, run_id))
        wider = None
        if authorization is None or not authorization.active:
            wider = await wider_authorization(chain, grantor, grantee, run_id)
    missing = missing_sentence(grantor, grantee, run_id)
    if authorization is None and wider is not None and wider.grantee == grantee:
        note(f"{missing}, but for all its runs")
        authorization = wider
        run_id = None
    elif wider is not None:
        note(f"warning: another authorization is active: {authorization_sentence(wider, run_id)}")
    if authorization is None:
        raise CommandError(missing, GRANT_FIX)
    data = authorization_data(authorization, run_id)
    return Result(data, facts(authorization_rows(data)))


@command(
    "join-authorization-delegate",
    example="aftermath-solana join-authorization-delegate -w grantee.json --join-authority GRANTOR_PUBKEY "
    "--delegates-clear --delegates-added delegate.json",
)
async def join_authorization_delegate(
    options: SigningOptions,
    join_authority: Annotated[
        str,
        typer.Option(
            "--join-authority", help="Who authorized the wallet: a public key or a key file."
        ),
    ],
    delegates_clear: Annotated[
        bool, typer.Option("--delegates-clear", help="First remove all present delegates.")
    ] = False,
    delegates_added: Annotated[
        list[str] | None,
        typer.Option(
            "--delegates-added",
            help="A key that may join: a public key or a key file. Can be repeated.",
        ),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Set the keys that may join on behalf of an authorized key.

    The wallet is the authorized key (grantee).
    """
    from aftermath.chain.options import public_key
    from aftermath.cli.authorization import (
        authorization_data,
        authorization_rows,
        require_authorization,
        scope_of,
    )
    from aftermath.cli.connection import sign_in

    if not delegates_clear and not delegates_added:
        raise UsageError(
            "no change was requested", "Pass --delegates-added KEY or --delegates-clear"
        )
    added = [public_key(text) for text in delegates_added or []]
    grantor = public_key(join_authority)
    async with sign_in(options) as chain:
        grantee = chain.wallet.pubkey
        scope = scope_of(chain, run_id)
        current = require_authorization(
            await chain.authorization(grantor, grantee, scope), grantor, grantee
        )
        remaining = () if delegates_clear else current.delegates
        new = [key for key in dict.fromkeys(added) if key not in remaining]
        steps = chain.authorizer.ix(grantee).delegation(current, clear=delegates_clear, added=new)
        if new or delegates_clear:
            size = chain.authorizer.size(grantor, grantee, len(remaining) + len(new), scope=scope)
            await chain.sender.afford(steps, size)
        signatures = await chain.sender.send_packed(steps) if new or delegates_clear else []
        authorization = require_authorization(
            await chain.authorization(grantor, grantee, scope), grantor, grantee
        )
    data = authorization_data(authorization, run_id) | {
        "signatures": [str(signature) for signature in signatures]
    }
    return Result(data, facts(authorization_rows(data)))


_SIGN = "Sign with the key of the join authority that granted it, or name another with --authorizer"


async def _nothing_to_delete(
    chain: Cluster,
    grantor: Pubkey,
    grantee: Pubkey,
    run_id: str | None,
    authorizer: str | None,
) -> CommandError:
    """Return the error about a missing authorization. It names the one that is still active."""
    from aftermath.chain.addresses import JOIN_SCOPE
    from aftermath.cli.authorization import (
        authorization_sentence,
        missing_sentence,
        wider_authorization,
    )

    missing = missing_sentence(grantor, grantee, run_id)
    wider = await wider_authorization(chain, grantor, grantee, run_id)
    if wider is None:
        return CommandError(missing, _SIGN)
    fix = "To withdraw that one: aftermath-solana join-authorization-delete"
    if wider.grantee == grantee and authorizer is not None:
        fix += f" --authorizer {shlex.quote(authorizer)}"
    if wider.scope == JOIN_SCOPE:
        fix += ", without --run-id and the variable RUN_ID"
    else:
        fix += f" --run-id {shlex.quote(run_id or '')}"
    return CommandError(f"{missing}, but {authorization_sentence(wider, run_id)}", fix)


@command(
    "join-authorization-delete",
    example="aftermath-solana join-authorization-delete -w grantor.json --authorizer GRANTEE_PUBKEY",
)
async def join_authorization_delete(
    options: SigningOptions,
    authorizer: Annotated[
        str | None,
        typer.Option(
            "--authorizer", help="Whom it admits: a public key or a key file. By default everybody."
        ),
    ] = None,
    run_id: OneRun = None,
) -> Result:
    """Withdraw an authorization, and close it if possible.

    It is invalid at once. Closing returns the rent to its payer. An authorization with delegates
    can be closed 30 days later.
    """
    from aftermath.chain.addresses import EVERYONE
    from aftermath.chain.options import public_key
    from aftermath.chain.refusals import CLOSED_TOO_EARLY, error_text, sol
    from aftermath.cli.authorization import scope_of
    from aftermath.cli.connection import sign_in
    from aftermath.coordinator.errors import Refused

    grantee = public_key(authorizer) if authorizer is not None else EVERYONE
    async with sign_in(options) as chain:
        grantor = chain.wallet.pubkey
        scope = scope_of(chain, run_id)
        ix = chain.authorizer.ix(grantor)
        authorization = await chain.authorization(grantor, grantee, scope)
        if authorization is None:
            raise await _nothing_to_delete(chain, grantor, grantee, run_id, authorizer)
        withdrawn = [ix.grantor_update(grantee, False, scope)] if authorization.active else []
        balance_before = await chain.balance(grantor)
        # an authorization with delegates can be closed only later
        closed = not (authorization.active and authorization.delegates)
        try:
            signatures = await chain.sender.send_packed(
                [*withdrawn, *([ix.close(authorization)] if closed else [])]
            )
        except Refused as error:
            if error.name != CLOSED_TOO_EARLY:
                raise
            closed = False
            signatures = await chain.sender.send_packed(withdrawn)
        returned = await chain.balance(grantor) - balance_before
        if not closed:
            note(error_text(CLOSED_TOO_EARLY)[0])
        await _warn_about_others(chain, grantor, grantee, run_id)
    data = {
        "address": str(authorization.address),
        "active": False,
        "closed": closed,
        "lamports_returned": returned,
        "signatures": [str(signature) for signature in signatures],
    }
    return Result(data, facts(renamed(data, "lamports_returned", "came back", sol(returned))))
