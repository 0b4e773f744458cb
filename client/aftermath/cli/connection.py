"""Open a cluster for the length of a command, with or without a wallet.

`--dry-run` of a signing command gets a sender that simulates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from solders.pubkey import Pubkey

from aftermath.chain.accounts import balance
from aftermath.chain.authorizer import Authorization, Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.dry_run import DryRunReport
from aftermath.chain.options import coordinator_id, open_pool
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import Sender
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.cli.dry_run import ended
from aftermath.cli.options import ClusterOptions, SigningOptions

PATIENCE_SECONDS = 10.0
"""How long a person waits for a cluster that does not answer."""


@dataclass(frozen=True)
class Cluster:
    """The programs on a cluster, to read."""

    pool: RpcPool
    coordinator: CoordinatorClient
    authorizer: Authorizer

    async def balance(self, key: Pubkey) -> int:
        """Return the lamports of an account, 0 if it does not exist."""
        return await balance(self.pool, key)


@dataclass(frozen=True)
class SignedCluster(Cluster):
    """The programs on a cluster, and the wallet that signs and pays."""

    wallet: Wallet

    @property
    def sender(self) -> Sender:
        """Packs, signs and sends instructions."""
        return self.coordinator.sender

    async def balance(self, key: Pubkey) -> int:
        """Return the lamports of an account after our last transaction, 0 if it does not exist."""
        return await balance(self.pool, key, self.sender.slot or None)

    async def authorization(
        self, grantor: Pubkey, grantee: Pubkey, scope: bytes
    ) -> Authorization | None:
        """Return the authorization after our last transaction (see `Authorizer.fetch`)."""
        return await self.authorizer.fetch(
            grantor, grantee, scope, min_slot=self.sender.slot or None
        )


@asynccontextmanager
async def connect(choice: ClusterOptions) -> AsyncIterator[Cluster]:
    """Open the cluster that these options name, for reading."""
    pool, program_id = _open(choice)
    async with pool:
        yield Cluster(pool, CoordinatorClient(pool, program_id=program_id), Authorizer(pool))


@asynccontextmanager
async def sign_in(choice: SigningOptions) -> AsyncIterator[SignedCluster]:
    """Open the cluster and the wallet that these options name.

    In a dry run, raise Ended when a transaction would be sent.
    """
    wallet = load_wallet(choice.wallet_private_key_path)
    cap = choice.max_priority_fee
    pool, program_id = _open(choice)
    async with pool:
        coordinator = CoordinatorClient(
            pool, wallet, program_id=program_id, max_priority_fee=cap, dry=choice.dry_run
        )
        try:
            yield SignedCluster(pool, coordinator, Authorizer(pool), wallet)
        except DryRunReport as report:
            raise ended(report) from None


def _open(choice: ClusterOptions) -> tuple[RpcPool, Pubkey | None]:
    return open_pool(choice, patience=PATIENCE_SECONDS), coordinator_id(choice)
