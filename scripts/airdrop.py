#!/usr/bin/env python3
"""Ask the faucet of devnet, testnet or a local network for test SOL, and wait for it.

The wallet is that of WALLET_PRIVATE_KEY_PATH, else the stored one (`config set wallet`). A public
faucet gives little at a time; https://faucet.solana.com also gives some to a public key.

Example: WALLET_PRIVATE_KEY_PATH=wallet.json python scripts/airdrop.py devnet --sol 2
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.chain.accounts import LAMPORTS_PER_SOL, balance
from aftermath.chain.endpoints import endpoint
from aftermath.chain.failures import RpcRejected
from aftermath.chain.refusals import sol
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import load_wallet
from aftermath.cli.present import CommandError, Result, facts
from aftermath.cli.profile import Name, read_profile
from aftermath.cli.script import ScriptParser, run, whole_number
from aftermath.coordinator.errors import Unavailable

VARIABLE = "WALLET_PRIVATE_KEY_PATH"
ANSWER_SECONDS = 10.0
ARRIVE_SECONDS = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Request SOL, wait for it, and print the wallet's balance. Return the exit status."""
    parser = ScriptParser("python scripts/airdrop.py", __doc__)
    parser.add_argument("cluster", help="devnet, testnet, or an RPC address")
    parser.add_argument(
        "--sol", type=whole_number(1, 100), default=2, help="how much to ask for (default 2)"
    )
    return run(parser, _give, argv)


def _give(arguments: argparse.Namespace) -> Result:
    path = os.environ.get(VARIABLE) or read_profile().get(Name.WALLET)
    if not path:
        raise CommandError(
            f"no wallet was given: {VARIABLE} is not set, and none is stored",
            "Make one, aftermath-solana show-identity --create -w wallet.json, and name its file in "
            f"{VARIABLE} or by aftermath-solana config set wallet wallet.json",
        )
    wallet = load_wallet(Path(path)).pubkey
    has = asyncio.run(_given(arguments.cluster, wallet, arguments.sol))
    data: dict[str, object] = {"wallet": str(wallet), "lamports": has}
    return Result(data, facts({"wallet": str(wallet), "has": sol(has)}))


async def _given(cluster: str, wallet: Pubkey, amount: int) -> int:
    """Return the wallet's lamports after the airdrop arrived.

    Raises UsageError, Unavailable or CommandError.
    """
    async with RpcPool([endpoint(cluster)], patience=ANSWER_SECONDS) as pool:
        before = await balance(pool, wallet)
        try:
            await pool.call(lambda node: node.request_airdrop(wallet, amount * LAMPORTS_PER_SOL))
        except (RpcRejected, Unavailable) as error:
            raise _refused(wallet, error.message) from error
        try:
            async with asyncio.timeout(ARRIVE_SECONDS):
                while (has := await balance(pool, wallet)) <= before:
                    await asyncio.sleep(0.5)
        except TimeoutError:
            raise _refused(wallet, f"nothing arrived in {ARRIVE_SECONDS:.0f} s") from None
    return has


def _refused(wallet: Pubkey, why: str) -> CommandError:
    return CommandError(
        f"the faucet gives nothing now: {why}",
        f"Try again in some hours, ask for less (--sol 1), or ask https://faucet.solana.com for {wallet}",
    )


if __name__ == "__main__":
    sys.exit(main())
