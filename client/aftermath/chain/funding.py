"""Money for transactions: what accounts lack in rent, and test money on a local network."""

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
ASK_AGAIN = 5.0  # seconds
_ODD = 9973  # lamports; any prime keeps sums apart
# seconds in which a faucet takes a request; the node itself has answered just before
ASK_PATIENCE = 5.0


async def rent_due(pool: RpcPool, sizes: Mapping[Pubkey, int]) -> dict[Pubkey, int]:
    """Return the lamports that each address still lacks for an account of its size in `sizes`."""
    addresses = list(sizes)
    _, accounts = await fetch_many(pool, addresses)
    held = {
        address: account.lamports if account else 0
        for address, account in zip(addresses, accounts, strict=True)
    }
    rents = {size: await rent(pool, size) for size in set(sizes.values())}
    return {address: max(0, rents[size] - held[address]) for address, size in sizes.items()}


async def ensure_funds(pool: RpcPool, wallet: Pubkey, lamports: int) -> int:
    """Make sure `wallet` holds at least `lamports`; return what it holds.

    On a local network it asks for the missing money with requestAirdrop. Elsewhere, or when the
    faucet refuses, it raises Refused `InsufficientFunds` with the missing sum.
    """
    held = await balance(pool, wallet)
    if held >= lamports:
        return held
    if not pool.is_local:
        raise no_funds(wallet, held, lamports)
    try:
        async with asyncio.timeout(AIRDROP_SECONDS):
            for attempt in itertools.count():
                if held >= lamports:
                    break
                held = await _ask(pool, wallet, held, lamports, attempt)
    except TimeoutError as error:
        raise Unavailable(
            f"the airdrop for {wallet} did not arrive in {AIRDROP_SECONDS:.0f} s",
            "Check the local network's log",
        ) from error
    return held


async def _ask(pool: RpcPool, wallet: Pubkey, held: int, lamports: int, attempt: int) -> int:
    """Ask the faucet, wait a little for the money, and return what the wallet holds then.

    Each request asks for another sum, because a faucet gives only once for equal requests.
    """
    wanted = max(lamports - held, AIRDROP_LEAST) + held % _ODD + attempt
    try:
        await pool.call(lambda node: node.request_airdrop(wallet, wanted), patience=ASK_PATIENCE)
    except (RpcRejected, Unavailable) as error:
        raise no_funds(wallet, held, lamports) from error
    again = asyncio.get_running_loop().time() + ASK_AGAIN
    while held < lamports and asyncio.get_running_loop().time() < again:
        await asyncio.sleep(0.05)
        held = await balance(pool, wallet)
    return held
