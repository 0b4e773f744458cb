"""The price per compute unit a transaction offers: what recent ones paid for the same accounts,
never more than the user allows.
"""

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
    """Micro-lamports per compute unit: the 75th percentile of getRecentPrioritizationFees over the
    written accounts.

    `cap` is the user's limit in micro-lamports per unit; 0 means none is paid and nothing is asked.
    """
    if cap <= 0:
        return 0
    written = list({a.pubkey: None for i in instructions for a in i.accounts if a.is_writable})
    prices = await pool.call(lambda node: node.recent_prices(written[:MAX_LOCKED_ACCOUNTS]))
    return min(percentile(prices, PERCENTILE), cap)


def percentile(values: Sequence[int], percent: int) -> int:
    """Nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0
    return sorted(values)[max(-(-len(values) * percent // 100) - 1, 0)]


def transaction_fee(signatures: int, units: int, price: int) -> int:
    """Lamports: 5,000 a signature, and the compute limit times its price, rounded up."""
    return signatures * LAMPORTS_PER_SIGNATURE + -(-units * price // MICRO)


def signature_count(payer: Pubkey, instructions: Sequence[Instruction]) -> int:
    """The signatures that a transaction of these pays for: its own, and those that the Ed25519
    program checks in it.
    """
    checked = sum(
        instruction.data[0] for instruction in instructions if instruction.program_id == ED25519
    )
    return len(payer_and_signers(payer, instructions)) + checked


def payer_and_signers(payer: Pubkey, instructions: Sequence[Instruction]) -> set[Pubkey]:
    """Return the signers that a transaction of these instructions needs."""
    return {payer} | {a.pubkey for i in instructions for a in i.accounts if a.is_signer}
