"""`create-run`: make a run's accounts, and say who may join it.

All instructions go into as few transactions as fit. The same command finishes an interrupted
creation, because it skips steps that are done. It checks once that the wallet can pay for all steps
and for the owner's next commands, before it sends anything.
"""

from __future__ import annotations

import shlex
import unicodedata
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aftermath.base.errors import UsageError
from aftermath.cli.command import command
from aftermath.cli.options import CLIENT_VERSION, DESCRIPTION, SHOWN_NAME, RunId, SigningOptions
from aftermath.cli.present import CommandError, Result, facts, note, renamed

if TYPE_CHECKING:
    from solders.instruction import Instruction
    from solders.pubkey import Pubkey

    from aftermath.cli.connection import SignedCluster

LATER_TRANSACTIONS = 20
"""Transactions that the owner can pay for afterwards: to configure the run, start, pause, change
and close it.
"""


class RunExists(CommandError):
    """There is such a run already."""

    code = "run-exists"


@command(
    "create-run",
    example='aftermath-solana create-run --run-id demo --name Demo --description "Three tiers on one machine"',
)
async def create_run(
    options: SigningOptions,
    run_id: RunId,
    name: Annotated[str, SHOWN_NAME] = "",
    description: Annotated[str, DESCRIPTION] = "",
    client_version: Annotated[str, CLIENT_VERSION] = "",
    join_authority: Annotated[
        str | None,
        typer.Option(
            help="Public key or key file of the wallet that admits members. By default this wallet, which admits "
            "everybody on a local network."
        ),
    ] = None,
) -> Result:
    """Create a run on chain.

    The wallet becomes its main authority, and its join authority unless you name another. On a
    local network, everybody may join. Elsewhere, only this wallet may join: admit other first
    members with join-authorization-create, and open the run to everybody after its first epoch.
    With another join authority, nobody may join until it admits them.
    """
    from aftermath import __version__
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.admission import warning_about_version
    from aftermath.chain.options import public_key
    from aftermath.chain.refusals import sol
    from aftermath.cli.authorization import open_to_all
    from aftermath.cli.connection import sign_in
    from aftermath.events.progress import state_phrase

    check_readable(run_id)
    if (quoted := shlex.quote(run_id)) != run_id:
        note(f"warning: every shell command needs quotes around this run id: {quoted}")
    if warning := warning_about_version(client_version, __version__):
        note(f"warning: {warning}")
    named_authority = public_key(join_authority) if join_authority is not None else None
    async with sign_in(options) as chain:
        owner = chain.wallet.pubkey
        authority = named_authority or owner
        metadata = {"name": name, "description": description, "num_parameters": 0, "vocab_size": 0}
        steps = await remaining_instructions(chain, run_id, metadata, authority, client_version)
        authorization_sizes = _authorization_size(chain, run_id) if authority == owner else {}
        await chain.sender.afford(
            steps, chain.coordinator.sizes(run_id) | authorization_sizes, later=LATER_TRANSACTIONS
        )
        balance_before = await chain.balance(owner)
        signatures = await chain.sender.send_packed(steps)
        spent = balance_before - await chain.balance(owner)
        run = await chain.coordinator.run(run_id)
        open_to_everybody = await open_to_all(chain, authority, run_id)
    if open_to_everybody and not chain.pool.is_local:
        note(
            "warning: an earlier authorization of this wallet admits everybody to all its runs; delete it before you "
            "start this run: aftermath-solana join-authorization-delete"
        )
    data = {
        "run_id": run_id,
        "address": str(run_addresses(chain.coordinator.program_id, run_id).run),
        "main_authority": str(owner),
        "join_authority": str(authority),
        "permissionless": open_to_everybody,
        "state": run.state.name.lower(),
        "lamports": spent,
        "signatures": [str(signature) for signature in signatures],
    }
    rows = renamed(data, "lamports", "paid", sol(spent))
    rows["state"] = state_phrase(run.state)
    return Result(data, facts(rows))


def _authorization_size(chain: SignedCluster, run_id: str) -> dict[Pubkey, int]:
    """Return the bytes of the authorization that a creation makes, by its address."""
    grantee, scope = _first_admitted(chain, run_id)
    return chain.authorizer.size(chain.wallet.pubkey, grantee, scope=scope)


def _first_admitted(chain: SignedCluster, run_id: str) -> tuple[Pubkey, bytes]:
    """Return the grantee and scope of a new run's first authorization.

    Outside local networks only the owner is admitted: strangers must not train the first epoch.
    """
    from aftermath.chain.addresses import EVERYONE, JOIN_SCOPE
    from aftermath.cli.authorization import scope_of

    if chain.pool.is_local:
        return EVERYONE, JOIN_SCOPE
    return chain.wallet.pubkey, scope_of(chain, run_id)


def check_readable(run_id: str) -> None:
    """Raise UsageError for an id with outer spaces, unprintable characters or no NFC form."""
    if not run_id.isprintable() or run_id != unicodedata.normalize("NFC", run_id.strip()):
        raise UsageError(
            f"run id {run_id!r} has outer spaces or characters that people cannot tell apart",
            "Choose an id that people can type",
        )


async def remaining_instructions(
    chain: SignedCluster,
    run_id: str,
    metadata: dict[str, Any],
    authority: Pubkey,
    client_version: str,
) -> list[Instruction]:
    """Return `missing_instructions`. Raise RunExists also if nothing is missing."""
    steps = await missing_instructions(chain, run_id, metadata, authority, client_version)
    if not steps:
        raise RunExists(
            f"run {run_id} exists already",
            "Choose another id, or change the run with update-config",
        )
    return steps


async def missing_instructions(
    chain: SignedCluster,
    run_id: str,
    metadata: dict[str, Any],
    authority: Pubkey,
    client_version: str,
) -> list[Instruction]:
    """Return the missing instructions of a creation: accounts, metadata and first authorization.

    Raise RunExists if the run belongs to another wallet.
    """
    from aftermath.cli.authorization import missing_grants

    owner = chain.wallet.pubkey
    steps = await missing_grows(chain, run_id)
    if steps is None:
        steps = chain.coordinator.creation(
            run_id, join_authority=authority, client_version=client_version
        )
    if steps and any(metadata.values()):
        steps.append(chain.coordinator.ix.update(run_id, metadata=metadata))
    if authority == owner:
        steps += await missing_grants(chain, *_first_admitted(chain, run_id))
    return steps


async def missing_grows(chain: SignedCluster, run_id: str) -> list[Instruction] | None:
    """Return the missing `grow` instructions of an interrupted creation, or None without a run."""
    from aftermath.chain.accounts import fetch_many
    from aftermath.chain.addresses import run_addresses
    from aftermath.chain.instructions import GROWTH, MEMBERS, WITNESSES
    from aftermath.chain.views import members_account, parse_run, witnesses_account

    addresses = run_addresses(chain.coordinator.program_id, run_id)
    _, (run, members, witnesses) = await fetch_many(
        chain.pool, [addresses.run, addresses.members, addresses.witnesses]
    )
    if (
        run is None
        or members is None
        or witnesses is None
        or run.owner != chain.coordinator.program_id
    ):
        # not the program's accounts, because anybody can send lamports to these addresses
        return None
    owner = parse_run(run.data).main_authority
    if owner != bytes(chain.wallet.pubkey):
        raise RunExists(
            f"run {run_id} exists already and belongs to another wallet", "Choose another id"
        )
    accounts = (
        (MEMBERS, len(members.data), members_account().size),
        (WITNESSES, len(witnesses.data), witnesses_account().size),
    )
    return [
        chain.coordinator.ix.grow(run_id, account_number)
        for account_number, length, size in accounts
        for _ in range(length, size, GROWTH)
    ]
