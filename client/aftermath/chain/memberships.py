"""Read a wallet's memberships, and check the bond of one.

A member pays a bond only up to `--max-bond`, and only when it starts. So a running member is not
charged again after an ejection or after the owner raises the bond.
"""

from __future__ import annotations

from solders.pubkey import Pubkey

from aftermath.chain.accounts import fetch, fetch_program
from aftermath.chain.addresses import membership_address, run_addresses
from aftermath.chain.refusals import refusal, sol
from aftermath.chain.rpc import RpcPool
from aftermath.chain.views import membership_account, parse_membership
from aftermath.rules.members import Membership
from aftermath.rules.run import Run

BOND_ABOVE_LIMIT = "BondAboveLimit"


async def membership_of(
    pool: RpcPool, program: Pubkey, run: Run, wallet: Pubkey, *, patience: float | None = None
) -> Membership | None:
    """Return a wallet's membership in this run, or None."""
    address = membership_address(
        program, run_addresses(program, run.run_id).run, run.created, wallet
    )
    _, account = await fetch(pool, address, patience=patience)
    if account is None or account.owner != program:
        return None
    return parse_membership(account.data)


async def memberships_of(
    pool: RpcPool, program: Pubkey, run: Pubkey, wallet: Pubkey
) -> list[Membership]:
    """Return a wallet's memberships in all runs at this address, closed ones too, oldest first."""
    layout = membership_account()
    prefix = layout.discriminator + bytes(run) + bytes(wallet)
    accounts = await fetch_program(pool, program, prefix=prefix, size=layout.size)
    return sorted(
        (parse_membership(account.data) for _, account in accounts),
        key=lambda membership: membership.created,
    )


async def memberships_of_wallet(pool: RpcPool, program: Pubkey, wallet: Pubkey) -> list[Membership]:
    """Return a wallet's memberships in all runs, closed runs included, oldest first."""
    layout = membership_account()
    at = len(layout.discriminator) + len(bytes(wallet))  # offset after the address of the run
    accounts = await fetch_program(
        pool, program, prefix=layout.discriminator, size=layout.size, holding=(at, bytes(wallet))
    )
    return sorted(
        (parse_membership(account.data) for _, account in accounts),
        key=lambda membership: membership.created,
    )


def unpaid_bond(run: Run, membership: Membership | None) -> int:
    """Return the lamports of the run's bond that a wallet has not paid yet."""
    return max(run.config.join_bond - (membership.bond if membership else 0), 0)


def check_bond(run: Run, membership: Membership | None, max_bond: int) -> None:
    """Raise Refused `BondAboveLimit` if the bond exceeds `max_bond` and is not fully paid."""
    bond = run.config.join_bond
    if bond <= max_bond or not unpaid_bond(run, membership):
        return
    raise refusal(
        BOND_ABOVE_LIMIT,
        f"run {run.run_id} requires a bond of {sol(bond)} from each member, and --max-bond allows only {sol(max_bond)}",
        f"If you agree, pass --max-bond {bond} (lamports). aftermath-solana withdraw returns the bond, unless the "
        "member was ejected",
    )
