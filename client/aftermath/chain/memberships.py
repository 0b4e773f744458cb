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
    found = await fetch_program(pool, program, prefix=prefix, size=layout.size)
    return sorted(
        (parse_membership(account.data) for _, account in found), key=lambda one: one.created
    )


async def memberships_of_wallet(pool: RpcPool, program: Pubkey, wallet: Pubkey) -> list[Membership]:
    """Return a wallet's memberships in all runs, closed runs included, oldest first."""
    layout = membership_account()
    at = len(layout.discriminator) + len(bytes(wallet))  # behind the address of the run
    found = await fetch_program(
        pool, program, prefix=layout.discriminator, size=layout.size, holding=(at, bytes(wallet))
    )
    return sorted(
        (parse_membership(account.data) for _, account in found), key=lambda one: one.created
    )


def lacking(run: Run, held: Membership | None) -> int:
    """Return the lamports of the run's bond that a wallet has not paid yet."""
    return max(run.config.join_bond - (held.bond if held else 0), 0)


def check_bond(run: Run, held: Membership | None, most: int) -> None:
    """Raise Refused `BondAboveLimit` if part of the bond is unpaid and the bond exceeds `most`."""
    bond = run.config.join_bond
    if bond <= most or not lacking(run, held):
        return
    raise refusal(
        BOND_ABOVE_LIMIT,
        f"run {run.run_id} asks for a bond of {sol(bond)} as long as a wallet is its member, and --max-bond allows "
        f"{sol(most)}",
        f"If you agree, say --max-bond {bond} (lamports); it comes back with aftermath-solana withdraw, but not to a "
        "member that was ejected",
    )
