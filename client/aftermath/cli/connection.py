"""Opens a cluster for the length of a command, with or without a wallet.

Decided here: a wallet on a local network that cannot pay is given test SOL, because there it costs nobody anything;
everywhere else the error says how much is missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from solders.pubkey import Pubkey

from aftermath.chain.accounts import balance
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.coordinator import Coordinator
from aftermath.chain.options import coordinator_id, open_pool
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import Sender
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.cli.options import ClusterOptions, SigningOptions
from aftermath.run.errors import ChainRefused

PATIENCE_SECONDS = 10.0
"""How long a person waits for a cluster that does not answer."""

ENOUGH_LAMPORTS = 2_000_000_000
"""More than the rent of a run and its first transactions."""


@dataclass(frozen=True)
class Cluster:
    """The programs on a cluster, to read."""

    pool: RpcPool
    coordinator: Coordinator
    authorizer: Authorizer

    async def balance(self, key: Pubkey) -> int:
        """Lamports of an account, 0 if it does not exist."""
        return await balance(self.pool, key)


@dataclass(frozen=True)
class SignedCluster(Cluster):
    """The programs on a cluster, and the wallet that signs and pays."""

    wallet: Wallet

    @property
    def sender(self) -> Sender:
        """Packs, signs and sends instructions."""
        return self.coordinator.sender


@asynccontextmanager
async def connect(choice: ClusterOptions) -> AsyncIterator[Cluster]:
    """The cluster these options name, to read."""
    pool, program_id = _chosen(choice)
    async with pool:
        yield Cluster(pool, Coordinator(pool, program_id=program_id), Authorizer(pool))


@asynccontextmanager
async def sign_in(choice: SigningOptions) -> AsyncIterator[SignedCluster]:
    """The cluster these options name, with their wallet, which has test SOL afterwards if the cluster is local."""
    wallet = load_wallet(choice.wallet_private_key_path)
    pool, program_id = _chosen(choice)
    async with pool:
        coordinator = Coordinator(pool, wallet, program_id=program_id, max_priority_fee=choice.max_priority_fee)
        if pool.is_local:
            # Loopback may be a tunnel to a cluster without a faucet; there the transaction says what is missing.
            with suppress(ChainRefused):
                await coordinator.sender.ensure_funds(ENOUGH_LAMPORTS)
        yield SignedCluster(pool, coordinator, Authorizer(pool), wallet)


def _chosen(choice: ClusterOptions) -> tuple[RpcPool, Pubkey | None]:
    return open_pool(choice, patience=PATIENCE_SECONDS), coordinator_id(choice)
