"""What a member needs besides an authorization: the client version that the run asks for, and money for its membership,
the run's bond and its fees.

Decided: `train` checks these before it spends minutes on anything else, and `can-join` answers from the same checks.
"""

from __future__ import annotations

from solders.pubkey import Pubkey

from aftermath.chain.funds import ensure_funds
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Refused

VERSION_MISMATCH = "ClientVersionMismatch"
FEES_IN_HAND = 5_000_000
"""Lamports a member shall start with besides the bond: the rent of its membership and some 500 transactions."""


def check_version(run_id: str, wanted: str, client_version: str) -> None:
    """Raises Refused `ClientVersionMismatch` when the run is not for this client; `wanted` empty: for any."""
    if wanted in ("", client_version):
        return
    raise Refused(
        VERSION_MISMATCH,
        f"run {run_id} takes clients of version {wanted} only, and this is version {client_version}",
        f"Get the source of version {wanted} and build it with make env; or its owner takes version {client_version}: "
        f"aftermath-solana update-config --run-id {run_id} --client-version {client_version}",
    )


async def check_funds(pool: RpcPool, wallet: Pubkey, bond: int = 0) -> None:
    """Raises Refused `InsufficientFunds` for a wallet that cannot pay what a start takes, `bond` lamports among it; on
    a network of this machine it is given what it lacks first, since nothing else tells whether the faucet gives any.
    """
    await ensure_funds(pool, wallet, FEES_IN_HAND + bond)
