"""Compute fees, with the priority price of recent transactions for the same accounts."""

from __future__ import annotations

from collections.abc import Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from aftermath.chain.addresses import ED25519
from aftermath.chain.rpc import RpcPool

LAMPORTS_PER_SIGNATURE = 5_000
MICRO = 1_000_000
MAX_LOCKED_ACCOUNTS = 128
PERCENTILE = 75


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
