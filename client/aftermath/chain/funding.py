"""Find out which rent accounts lack, and request test SOL on a local network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from solders.pubkey import Pubkey

from aftermath.chain.accounts import LAMPORTS_PER_SOL, balance, fetch_many, rent
from aftermath.chain.failures import RpcRejected
from aftermath.chain.refusals import no_funds
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Unavailable

AIRDROP_LEAST = 10 * LAMPORTS_PER_SOL
AIRDROP_SECONDS = 30.0
ASK_AGAIN = 5.0  # seconds between two requests
_ODD = 9973  # lamports; a prime, so that no two requests have the same sum
# seconds for a faucet to accept a request; the node has just answered
ASK_PATIENCE = 5.0


async def rent_due(pool: RpcPool, sizes: Mapping[Pubkey, int]) -> dict[Pubkey, int]:
    """Return the lamports that each address still lacks for an account of its size in `sizes`."""
    addresses = list(sizes)
    _, accounts = await fetch_many(pool, addresses)
    lamports = {
        address: account.lamports if account else 0
        for address, account in zip(addresses, accounts, strict=True)
    }
    rents = {size: await rent(pool, size) for size in set(sizes.values())}
    return {address: max(0, rents[size] - lamports[address]) for address, size in sizes.items()}


async def ensure_funds(pool: RpcPool, wallet: Pubkey, lamports: int) -> int:
    """Make sure `wallet` holds at least `lamports`; return what it holds.

    On a local network it asks for the missing money with requestAirdrop. Elsewhere, or when the
    faucet refuses, it raises Refused `InsufficientFunds` with the missing sum.
    """
    balance_now = await balance(pool, wallet)
    if balance_now >= lamports:
        return balance_now
    if not pool.is_local:
        raise no_funds(wallet, balance_now, lamports)
    try:
        async with asyncio.timeout(AIRDROP_SECONDS):
            for attempt in itertools.count():
                if balance_now >= lamports:
                    break
                balance_now = await _ask(pool, wallet, balance_now, lamports, attempt)
    except TimeoutError as error:
        raise Unavailable(
            f"the airdrop for {wallet} did not arrive in {AIRDROP_SECONDS:.0f} s",
            "Check the local network's log",
        ) from error
    return balance_now


async def _ask(pool: RpcPool, wallet: Pubkey, balance_now: int, lamports: int, attempt: int) -> int:
    """Ask the faucet, wait shortly for the money, and return the wallet's balance.

    Each request asks for a different sum, because a faucet treats equal requests as one.
    """
    amount = max(lamports - balance_now, AIRDROP_LEAST) + balance_now % _ODD + attempt
    try:
        await pool.call(lambda node: node.request_airdrop(wallet, amount), patience=ASK_PATIENCE)
    except (RpcRejected, Unavailable) as error:
        raise no_funds(wallet, balance_now, lamports) from error
    retry_at = asyncio.get_running_loop().time() + ASK_AGAIN
    while balance_now < lamports and asyncio.get_running_loop().time() < retry_at:
        await asyncio.sleep(0.05)
        balance_now = await balance(pool, wallet)
    return balance_now
