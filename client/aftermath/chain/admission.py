"""Check what a member needs besides an authorization: client version, funds and a safe run.

`train` runs these checks before any slow step, and `can-join` runs the same ones.
"""

from __future__ import annotations

import shlex

from solders.pubkey import Pubkey

from aftermath.chain.funding import ensure_funds
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Refused

VERSION_MISMATCH = "ClientVersionMismatch"
FEES_IN_HAND = 5_000_000
"""Lamports a member needs at its start besides the bond: membership rent and about 500 fees."""


def warning_about_version(required: str, this_version: str) -> str:
    """Return a warning if a run that requires version `required` excludes this client, else ""."""
    if required in ("", this_version):
        return ""
    return (
        f"only clients of version {required} may join, and this one is {this_version}; to admit it pass "
        f"--client-version {this_version}, or --client-version '' for any version"
    )


def check_version(run_id: str, required: str, client_version: str) -> None:
    """Raise Refused `ClientVersionMismatch` if the run requires another client version.

    An empty `required` admits any version.
    """
    if required in ("", client_version):
        return
    raise Refused(
        VERSION_MISMATCH,
        f"run {run_id} requires client version {required}, and this is version {client_version}",
        f"Build version {required} from its source with make env, or let the owner admit version {client_version}: "
        f"aftermath-solana update-config --run-id {shlex.quote(run_id)} --client-version {client_version}",
    )


def not_admitted(
    run_id: str, wallet: Pubkey, grantor: Pubkey, authorizer: Pubkey | None
) -> Refused:
    """Return the refusal of a wallet that the join authority `grantor` did not authorize.

    `authorizer`: the grantee as whose delegate the wallet asks to join, if it names one.
    """
    if authorizer is None:
        delegate = "if you are a delegate, pass --authorizer GRANTEE"
    else:
        delegate = (
            f"or ask {authorizer} to delegate to it: aftermath-solana join-authorization-delegate"
        )
    return Refused(
        "NotAuthorized",
        f"wallet {wallet} is not admitted to run {run_id!r}",
        f"Ask the run's join authority {grantor} for an authorization: aftermath-solana join-authorization-create "
        f"--authorizer {wallet}; {delegate}",
    )


async def check_funds(pool: RpcPool, wallet: Pubkey, bond: int = 0) -> None:
    """Raise Refused `InsufficientFunds` if a wallet cannot pay the fees and bond of a start.

    On a local network, request the missing lamports first: only a request shows whether the faucet
    gives any. `bond` is in lamports.
    """
    await ensure_funds(pool, wallet, FEES_IN_HAND + bond)
