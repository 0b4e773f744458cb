"""Money for transactions: what a wallet holds, and test money on a network of this machine."""

from __future__ import annotations

import asyncio

from solders.pubkey import Pubkey
from solders.rpc.requests import RequestAirdrop

from aftermath.chain.accounts import LAMPORTS_PER_SOL, balance
from aftermath.chain.failures import RpcRejected
from aftermath.chain.refusals import no_funds
from aftermath.chain.rpc import RpcPool
from aftermath.run.errors import ChainUnavailable

AIRDROP_LEAST = 10 * LAMPORTS_PER_SOL
AIRDROP_SECONDS = 30.0
ASK_PATIENCE = 5.0  # seconds in which a faucet takes a request; the node itself has answered just before


async def ensure_funds(pool: RpcPool, wallet: Pubkey, lamports: int) -> int:
    """Make sure `wallet` holds at least `lamports`; returns what it holds.

    On a network of this machine (every endpoint on loopback) the missing money is asked for with requestAirdrop;
    elsewhere, or when that is not granted, raises ChainRefused `InsufficientFunds` saying how much is missing.
    """
    held = await balance(pool, wallet)
    if held >= lamports:
        return held
    if not pool.is_local:
        raise no_funds(wallet, held, lamports)
    try:
        await pool.call(RequestAirdrop(wallet, max(lamports - held, AIRDROP_LEAST)), str, patience=ASK_PATIENCE)
    except (RpcRejected, ChainUnavailable) as error:
        raise no_funds(wallet, held, lamports) from error
    try:
        async with asyncio.timeout(AIRDROP_SECONDS):
            while held < lamports:
                await asyncio.sleep(0.05)
                held = await balance(pool, wallet)
    except TimeoutError as error:
        raise ChainUnavailable(
            f"the airdrop for {wallet} did not arrive in {AIRDROP_SECONDS:.0f} s", "check the local network's log"
        ) from error
    return held
