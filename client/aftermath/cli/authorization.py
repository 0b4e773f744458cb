"""Helpers of several commands to grant and show authorizations."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.addresses import EVERYONE, JOIN_SCOPE, run_addresses
from aftermath.chain.authorizer import Authorization
from aftermath.cli.connection import Cluster, SignedCluster
from aftermath.cli.present import CommandError, renamed
from aftermath.coordinator.errors import NoSuchRun
from aftermath.owner.open_run import check_open_run, check_opening


def scope_of(chain: Cluster, run_id: str | None) -> bytes:
    """Return the scope of an authorization: one run, or all runs if `run_id` is None."""
    return (
        JOIN_SCOPE
        if run_id is None
        else bytes(run_addresses(chain.coordinator.program_id, run_id).run)
    )


async def missing_grants(
    chain: SignedCluster, grantee: Pubkey, scope: bytes = JOIN_SCOPE
) -> list[Instruction]:
    """Return the missing instructions to let `grantee` join; empty if it is already authorized."""
    ix = chain.authorizer.ix(chain.wallet.pubkey)
    authorization = await chain.authorization(chain.wallet.pubkey, grantee, scope)
    if authorization is not None and authorization.active:
        return []
    return ([] if authorization else [ix.create(grantee, scope)]) + [
        ix.grantor_update(grantee, True, scope)
    ]


async def open_to_all(chain: SignedCluster, grantor: Pubkey, run_id: str) -> bool:
    """Return whether a join authority lets everybody join a run."""
    scopes = (JOIN_SCOPE, scope_of(chain, run_id))
    authorizations = [await chain.authorization(grantor, EVERYONE, scope) for scope in scopes]
    return any(
        authorization is not None and authorization.active for authorization in authorizations
    )


async def check_may_open(chain: SignedCluster, run_id: str | None) -> None:
    """Raise OpenRunRefused if the run may not be opened to everybody now.

    On a local network every run may be opened.
    """
    await chain.pool.genesis()  # `is_local` needs the genesis hash
    if chain.pool.is_local:
        return
    if run_id is None:
        check_opening(None, None)
        return
    try:
        run, model, members = await chain.coordinator.snapshot(run_id, any_spec=True)
    except NoSuchRun:
        check_opening(run_id, None)
        return
    check_opening(run_id, members)
    start = model.checkpoint if not any(model.checkpoint_hashes) else None
    config = run.config
    check_open_run(
        run_id, overlap=config.overlap, init_min_clients=config.init_min_clients, checkpoint=start
    )


async def warning_about_grantor(chain: Cluster, run_id: str, grantor: Pubkey) -> str:
    """Return a warning if `grantor` is not the run's join authority; "" if it is, or no run."""
    try:
        run = await chain.coordinator.run(run_id)
    except NoSuchRun:
        return ""
    authority = Pubkey(run.join_authority)
    if authority == grantor:
        return ""
    return f"grants of {grantor} admit nobody to run {run_id}: its join authority is {authority}"


async def wider_authorization(
    chain: Cluster, grantor: Pubkey, grantee: Pubkey, run_id: str | None
) -> Authorization | None:
    """Return another active authorization that admits `grantee` to the same run or runs, or None.

    It covers all runs of `grantor`, or everybody, or both.
    """
    scopes = [JOIN_SCOPE] if run_id is None else [JOIN_SCOPE, scope_of(chain, run_id)]
    own = (grantee, scope_of(chain, run_id))
    pairs = [(key, scope) for key in dict.fromkeys((grantee, EVERYONE)) for scope in scopes]
    for key, scope in pairs:
        if (key, scope) == own:
            continue
        authorization = await chain.authorizer.fetch(grantor, key, scope)
        if authorization is not None and authorization.active:
            return authorization
    return None


def authorization_sentence(authorization: Authorization, run_id: str | None) -> str:
    """Return who authorized whom, and for which runs. `run_id`: the run of a narrow scope."""
    runs = "all its runs" if authorization.scope == JOIN_SCOPE else f"run {run_id}"
    return f"{authorization.grantor} authorized {grantee_text(authorization.grantee)} for {runs}"


def grantee_text(grantee: Pubkey) -> str:
    """Return the grantee's key, or "everybody"."""
    return "everybody" if grantee == EVERYONE else str(grantee)


def missing_sentence(grantor: Pubkey, grantee: Pubkey, run_id: str | None) -> str:
    """Return the sentence about an authorization that does not exist."""
    alone = "" if run_id is None else f" for run {run_id} alone"
    return f"{grantor} has not authorized {grantee_text(grantee)}{alone}"


GRANT_FIX = "Ask the join authority to grant one: aftermath-solana join-authorization-create"


def require_authorization(
    authorization: Authorization | None, grantor: Pubkey, grantee: Pubkey, fix: str = GRANT_FIX
) -> Authorization:
    """Return the authorization. Raise CommandError if it is None."""
    if authorization is None:
        raise CommandError(missing_sentence(grantor, grantee, None), fix)
    return authorization


def authorization_rows(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data of an authorization for people: with a date instead of unix seconds."""
    changed = datetime.fromtimestamp(data["grantor_update_at"], UTC)
    return renamed(
        data, "grantor_update_at", "granted or withdrawn", f"{changed:%Y-%m-%d %H:%M:%S} UTC"
    )


def authorization_data(authorization: Authorization, run_id: str | None) -> dict[str, Any]:
    """Return an authorization as JSON types. `run_id`: its run, or None for all runs."""
    return {
        "address": str(authorization.address),
        "join_authority": str(authorization.grantor),
        "authorizer": str(authorization.grantee),
        "everybody": authorization.grantee == EVERYONE,
        "run_id": run_id,
        "all_runs": run_id is None,
        "active": authorization.active,
        "delegates": [str(key) for key in authorization.delegates],
        "grantor_update_at": authorization.grantor_update_at,
        "sponsor": str(authorization.sponsor),
        "delegates_sponsor": str(authorization.delegates_sponsor),
    }
