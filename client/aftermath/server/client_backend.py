"""Connect a member to the run of a server, as `train.connection` does for a cluster.

An identity is a seed of 32 secret bytes for the signing key. The peer key is derived from it and
the run id, as for a wallet. This machine keeps identities for members that pass none.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from solders.keypair import Keypair
from websockets.exceptions import WebSocketException

from aftermath.base.bounded import Malformed
from aftermath.base.concurrency import first_of
from aftermath.base.errors import UsageError
from aftermath.base.proxies import proxy_for
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import IDENTITY_VARIABLE, Wallet, identity_secret
from aftermath.cli.connection import PATIENCE_SECONDS, Cluster
from aftermath.coordinator.errors import CoordinatorError, Unavailable
from aftermath.p2p.discovery import Whereabouts
from aftermath.rules.run import RoundId
from aftermath.server.connection import ServerConnection
from aftermath.server.kept_identity import kept_identity
from aftermath.server.tls_trust import TlsTrust, unreachable_fix
from aftermath.train.connection import START_PATIENCE, MemberBackend
from aftermath.train.settings import TrainSettings

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+):(\d{1,5})")
RENEW_SECONDS = 20.0
"""Seconds between two signed withdraw transactions. A transaction is valid for a minute."""
_WITHDRAW_UNITS = 400_000  # compute limit


class ServerRpcPool(RpcPool):
    """An RPC pool whose only endpoint is the server."""

    called = keeper = "the server"
    keeps_seats = False  # the server withdraws a member seconds after its connection ends
    signs_with = "identity"
    has_tick = False

    def __init__(self, link: ServerConnection, *, patience: float, seed: int) -> None:
        # RPC calls and subscriptions use one port. Warnings print this address.
        server = endpoint(link.url.replace("ws", "http", 1), link.url)
        super().__init__([server], patience=patience, seed=seed, wire=link)
        self._link = link

    def _unavailable(self, patience: float) -> Unavailable:
        return Unavailable(
            f"the server {self._link.address} has not answered for {patience:.0f} s: {self._nodes.all[0].last_error}",
            unreachable_fix(self._link.trust),
        )


class ServerDirectory:
    """Publish and look up the addresses of peers at the server (`p2p.discovery.Directory`)."""

    def __init__(self, link: ServerConnection) -> None:
        self._link = link
        self._written: Whereabouts | None = None
        self._announcing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Do nothing: the server needs no preparation."""

    def write(self, whereabouts: Whereabouts) -> None:
        """Announce this member's addresses in the background."""
        self._written = whereabouts
        self._announcing = asyncio.create_task(self._announce(whereabouts))

    def refresh(self, whereabouts: Whereabouts) -> None:
        """Announce the addresses if they changed or the last announcement failed."""
        if whereabouts != self._written:
            self.write(whereabouts)

    def remove(self) -> None:
        """Do nothing: the server drops the addresses when the connection ends."""

    def read(self, node_id: bytes) -> Whereabouts | None:
        """Return the addresses of a peer, or None if the server knows none."""
        return self._link.peers.get(node_id)

    async def _announce(self, whereabouts: Whereabouts) -> None:
        try:
            await self._link.announce(whereabouts)
        except (OSError, WebSocketException, Malformed, CoordinatorError):
            self._written = None  # `refresh` tries again


def load_identity(path: Path | None) -> Wallet:
    """Load the identity from a file, or RAW_IDENTITY_SECRET_KEY, or make a temporary one.

    Raises WalletError.
    """
    if path is None and not os.environ.get(IDENTITY_VARIABLE):
        return Wallet(Keypair(), "made for this process")
    secret = identity_secret("", Wallet(Keypair()), path)
    return Wallet(Keypair.from_seed(secret), str(path or IDENTITY_VARIABLE))


def check_address(address: str) -> None:
    """Raise UsageError unless `address` is HOST:PORT."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(
            f"--server-addr {address!r} is not a valid address",
            "Write HOST:PORT, for example --server-addr 192.168.1.5:20000",
        )


def _build_connection(
    address: str, trust: TlsTrust | None, run_id: str, wallet: Wallet, patience: float
) -> tuple[ServerConnection, ServerRpcPool, bytes]:
    """Return an identity's connection, its RPC pool, and the secret of its peer key.

    Nothing is sent yet. Raises UsageError for an unusable proxy setting.
    """
    secret = identity_secret(run_id, wallet, env={})
    # Check the proxy variables now, not at the first call.
    proxy_for(f"{'wss' if trust else 'ws'}://{address}")
    link = ServerConnection(address, trust, run_id, wallet, Keypair.from_seed(secret))
    return link, ServerRpcPool(link, patience=patience, seed=int.from_bytes(os.urandom(4))), secret


@contextlib.asynccontextmanager
async def open_coordinator(
    address: str, trust: TlsTrust | None, identity: Path | None, run_id: str
) -> AsyncIterator[CoordinatorClient]:
    """Open the run of a server for reading. Raises UsageError or WalletError."""
    check_address(address)
    _, pool, _ = _build_connection(
        address, trust, run_id, load_identity(identity), PATIENCE_SECONDS
    )
    async with pool:
        yield CoordinatorClient(pool)


@contextlib.asynccontextmanager
async def open_cluster(
    address: str, trust: TlsTrust | None, wallet: Wallet, run_id: str
) -> AsyncIterator[Cluster]:
    """Open the run of a server as the member with this key. Raises UsageError."""
    check_address(address)
    _, pool, _ = _build_connection(address, trust, run_id, wallet, PATIENCE_SECONDS)
    async with pool:
        yield Cluster(pool, CoordinatorClient(pool), Authorizer(pool))


def server_backend(
    address: str, trust: TlsTrust | None, identity: Path | None
) -> Callable[[TrainSettings], MemberBackend]:
    """Return the function that connects `train` to the server at HOST:PORT.

    Raises UsageError now, and WalletError when the function is called.
    """
    check_address(address)

    # A process keeps its identity, even if it connects several times.
    @functools.cache
    def wallet_of(run_id: str, tier: int, checkpoint_dir: Path | None) -> Wallet:
        if identity is None and not os.environ.get(IDENTITY_VARIABLE):
            return kept_identity(address, run_id, tier, checkpoint_dir)
        return load_identity(identity)

    def backend(settings: TrainSettings) -> MemberBackend:
        wallet = wallet_of(settings.run_id, settings.matformer_tier, settings.checkpoint_dir)
        link, pool, secret = _build_connection(
            address, trust, settings.run_id, wallet, START_PATIENCE
        )

        async def background(chain: SolanaMember) -> None:
            await renew_withdraw_transaction(
                chain, link, CoordinatorClient(pool, wallet), settings.run_id
            )

        return MemberBackend(pool, None, None, wallet, secret, ServerDirectory(link), background)

    return backend


async def renew_withdraw_transaction(
    chain: SolanaMember, link: ServerConnection, client: CoordinatorClient, run_id: str
) -> None:
    """Keep a valid withdraw transaction of this member at the server, until cancelled.

    Sign a new one every `RENEW_SECONDS` and in every round, because it names the round.
    """
    while True:
        round_id = (await chain.view()).run.round_id
        with contextlib.suppress(OSError, WebSocketException, Malformed, CoordinatorError):
            blockhash, _ = await client.sender.blockhash()
            leave = client.ix.leave_run(run_id, round_id)
            transaction = client.sender.transaction([leave], (), _WITHDRAW_UNITS, 0, blockhash)
            await link.set_withdraw_transaction(base64.b64encode(bytes(transaction)))
        await first_of(_wait_for_next_round(chain, round_id), asyncio.sleep(RENEW_SECONDS))


async def _wait_for_next_round(chain: SolanaMember, round_id: RoundId) -> None:
    """Return once the run is in another round than `round_id`."""
    async for view in chain.views():
        if view.run.round_id != round_id:
            return
