"""How a process reaches its run: the coordinator, its own keys and its peers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from solders.pubkey import Pubkey

from aftermath import __version__
from aftermath.chain.member import SolanaMember
from aftermath.chain.options import coordinator_id, open_pool, public_key
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet, identity_secret, load_wallet
from aftermath.p2p.discovery import Directory
from aftermath.train.settings import TrainSettings

START_PATIENCE = 20.0  # seconds that a start waits for the coordinator to answer


@dataclass(frozen=True)
class MemberBackend:
    """A member's RPC pool, keys and peer directory, on a cluster or a server.

    `directory` finds peers; None leaves that to the options. `background` runs as long as the
    member. `local_directory` is where peers on this machine find each other, once the run is known.
    """

    pool: RpcPool
    program_id: Pubkey | None
    authorizer: Pubkey | None
    wallet: Wallet
    secret: bytes
    """Key of the identity that peers see."""
    directory: Directory | None = None
    background: Callable[[SolanaMember], Coroutine[Any, Any, None]] | None = None
    local_directory: Path | None = None


def on_solana(settings: TrainSettings) -> MemberBackend:
    """Open the cluster, wallet and identity of the options. Raises UsageError or WalletError."""
    pool = open_pool(settings, patience=START_PATIENCE)
    program = coordinator_id(settings)
    authorizer = public_key(settings.authorizer) if settings.authorizer is not None else None
    wallet = load_wallet(settings.wallet_private_key_path)
    secret = identity_secret(settings.run_id, wallet, settings.identity_secret_key_path)
    return MemberBackend(pool, program, authorizer, wallet, secret)


def member_of(settings: TrainSettings, backend: MemberBackend) -> SolanaMember:
    """Return this member's client of the coordinator, not opened yet."""
    return SolanaMember(
        backend.pool,
        backend.wallet,
        settings.run_id,
        client_version=__version__,
        authorizer=backend.authorizer,
        program_id=backend.program_id,
        max_priority_fee=settings.max_priority_fee,
        max_bond=settings.max_bond,
    )
