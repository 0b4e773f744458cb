"""Compute fees and missing rent, and request test SOL on a local network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.accounts import LAMPORTS_PER_SOL, balance, fetch_many, rent
from aftermath.chain.addresses import ED25519
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
LAMPORTS_PER_SIGNATURE = 5_000
MICRO = 1_000_000
MAX_LOCKED_ACCOUNTS = 128
PERCENTILE = 75


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


async def priority_price(pool: RpcPool, instructions: Sequence[Instruction], cap: int) -> int:
    """Return the price to offer, in micro-lamports per compute unit.

    It is the 75th percentile of getRecentPrioritizationFees over the written accounts, at most
    `cap`. A `cap` of 0 returns 0 without asking a node.
    """
    if cap <= 0:
        return 0
    written_accounts = list(
        {a.pubkey: None for i in instructions for a in i.accounts if a.is_writable}
    )
    prices = await pool.call(
        lambda node: node.recent_prices(written_accounts[:MAX_LOCKED_ACCOUNTS])
    )
    return min(percentile(prices, PERCENTILE), cap)


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the nearest-rank percentile of `values`, or 0 if there are none."""
    if not values:
        return 0
    return sorted(values)[max(-(-len(values) * percent // 100) - 1, 0)]


def transaction_fee(signatures: int, units: int, price: int) -> int:
    """Return a fee in lamports: 5,000 per signature plus compute limit x price, rounded up."""
    return signatures * LAMPORTS_PER_SIGNATURE + -(-units * price // MICRO)


def signature_count(payer: Pubkey, instructions: Sequence[Instruction]) -> int:
    """Return how many signatures a transaction pays for, those checked by Ed25519 included."""
    checked = sum(
        instruction.data[0] for instruction in instructions if instruction.program_id == ED25519
    )
    return len(payer_and_signers(payer, instructions)) + checked


def payer_and_signers(payer: Pubkey, instructions: Sequence[Instruction]) -> set[Pubkey]:
    """Return the signers that a transaction of these instructions needs."""
    return {payer} | {a.pubkey for i in instructions for a in i.accounts if a.is_signer}
