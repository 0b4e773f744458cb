"""Opens a cluster for the length of a command, with or without a wallet.

Decided here: a wallet on a local network that cannot pay is given test SOL, because there it costs nobody anything;
everywhere else the error says how much is missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from solders.pubkey import Pubkey

from aftermath.chain.accounts import balance
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.coordinator import Coordinator
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.sender import Sender
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.cli.options import ClusterOptions, SigningOptions
from aftermath.cli.present import UsageError
from aftermath.run.errors import ChainRefused

PATIENCE_SECONDS = 10.0
"""How long a person waits for a cluster that does not answer."""

BASE58 = "a public key is 32 bytes in base58"
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
async def connect(options: ClusterOptions) -> AsyncIterator[Cluster]:
    """The cluster these options name, to read."""
    async with _pool(options) as pool:
        yield Cluster(pool, Coordinator(pool, program_id=_coordinator_id(options)), Authorizer(pool))


@asynccontextmanager
async def sign_in(options: SigningOptions) -> AsyncIterator[SignedCluster]:
    """The cluster these options name, with their wallet, which has test SOL afterwards if the cluster is local."""
    wallet = load_wallet(options.wallet_private_key_path)
    async with _pool(options) as pool:
        coordinator = Coordinator(
            pool, wallet, program_id=_coordinator_id(options), max_priority_fee=options.max_priority_fee
        )
        if pool.is_local:
            # Loopback may be a tunnel to a cluster without a faucet; there the transaction says what is missing.
            with suppress(ChainRefused):
                await coordinator.sender.ensure_funds(ENOUGH_LAMPORTS)
        yield SignedCluster(pool, coordinator, Authorizer(pool), wallet)


def _pool(options: ClusterOptions) -> RpcPool:
    pairs = (
        (options.rpc, options.ws_rpc, "--ws-rpc"),
        (options.rpc_2, options.ws_rpc_2, "--ws-rpc-2"),
        (options.rpc_3, options.ws_rpc_3, "--ws-rpc-3"),
    )
    for http, ws, flag in pairs:
        if ws and not http:
            raise UsageError(f"{flag} was given without {flag.replace('ws-', '')}", "give both, or neither")
    return RpcPool([endpoint(http, ws) for http, ws, _ in pairs if http], patience=PATIENCE_SECONDS)


def _coordinator_id(options: ClusterOptions) -> Pubkey | None:
    text = options.coordinator_program_id
    if text is None:
        return None
    try:
        return Pubkey.from_string(text)
    except ValueError:
        raise UsageError(f"--coordinator-program-id: {text!r} is not a public key", BASE58) from None


def public_key(text: str) -> Pubkey:
    """The key this text is, or the one in the key file it names. Raises UsageError, or WalletError for a bad file."""
    try:
        return Pubkey.from_string(text)
    except ValueError:
        path = Path(text).expanduser()
    if path.is_file():
        return load_wallet(path).pubkey
    if not text:  # an unset variable of a shell must not mean "everybody"
        raise UsageError("the key given is empty", "name a public key or a key file, or leave the option out")
    raise UsageError(f"{text!r} is neither a public key nor a key file", BASE58)
