"""Connects `train` to a server's run: identity, connection and background tasks
(`train.connection`).

An identity is 32 secret bytes, the seed of the signing key. The peer key is derived from it and the
run, as for a wallet. A member without an identity gets a temporary one.
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
from aftermath.server.trust import Trust, reached
from aftermath.train.connection import START_PATIENCE, Reach
from aftermath.train.settings import TrainSettings

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]/@\s]+):(\d{1,5})")
RENEW = 20.0
"""Seconds after which a withdraw transaction is signed again. A transaction is valid for a
minute.
"""
_WILL_UNITS = 400_000


class CentralPool(RpcPool):
    """The one server, as an RPC service."""

    called = keeper = "the server"
    keeps_seats = False  # the server withdraws a member some seconds after its connection ends
    signs_with = "identity"
    has_tick = False

    def __init__(self, link: ServerConnection, *, patience: float, seed: int) -> None:
        # both are one port, and what a warning names is what the link speaks to
        at = endpoint(link.url.replace("ws", "http", 1), link.url)
        super().__init__([at], patience=patience, seed=seed, wire=link)
        self._link = link

    def _unavailable(self, patience: float) -> Unavailable:
        return Unavailable(
            f"the server {self._link.address} has not answered for {patience:.0f} s: {self._nodes.all[0].last_error}",
            reached(self._link.trust),
        )


class Broker:
    """The server as what tells where peers are (`p2p.discovery.Directory`)."""

    def __init__(self, link: ServerConnection) -> None:
        self._link = link
        self._said: Whereabouts | None = None
        self._telling: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        pass

    def write(self, whereabouts: Whereabouts) -> None:
        self._said = whereabouts
        self._telling = asyncio.create_task(self._tell(whereabouts))

    def refresh(self, whereabouts: Whereabouts) -> None:
        if whereabouts != self._said:
            self.write(whereabouts)

    def remove(self) -> None:
        """The server forgets it with the connection."""

    def read(self, node_id: bytes) -> Whereabouts | None:
        return self._link.peers.get(node_id)

    async def _tell(self, whereabouts: Whereabouts) -> None:
        try:
            await self._link.announce(whereabouts)
        except (OSError, WebSocketException, Malformed, CoordinatorError):
            self._said = None  # `refresh` tries again


def identity_of(path: Path | None) -> Wallet:
    """The identity in this file, else in RAW_IDENTITY_SECRET_KEY, else a new one. Raises
    WalletError.
    """
    if path is None and not os.environ.get(IDENTITY_VARIABLE):
        return Wallet(Keypair(), "made for this process")
    secret = identity_secret("", Wallet(Keypair()), path)
    return Wallet(Keypair.from_seed(secret), str(path or IDENTITY_VARIABLE))


def check_address(address: str) -> None:
    """Raise UsageError for what is no HOST:PORT."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found[2]) < 65536:
        raise UsageError(f"--server-addr {address!r} is no address", "Write HOST:PORT")


def _linked(
    address: str, trust: Trust | None, run_id: str, wallet: Wallet, patience: float
) -> tuple[ServerConnection, CentralPool, bytes]:
    """The link of an identity, the server as it is asked over it, and the secret of the key that
    peers see.
    """
    secret = identity_secret(run_id, wallet, env={})
    proxy_for(f"{'wss' if trust else 'ws'}://{address}")  # before anything waits for a connection
    link = ServerConnection(address, trust, run_id, wallet, Keypair.from_seed(secret))
    return link, CentralPool(link, patience=patience, seed=int.from_bytes(os.urandom(4))), secret


@contextlib.asynccontextmanager
async def visiting(
    address: str, trust: Trust | None, identity: Path | None, run_id: str
) -> AsyncIterator[CoordinatorClient]:
    """The run of the server at HOST:PORT, to look at. Raises UsageError, WalletError."""
    check_address(address)
    _, pool, _ = _linked(address, trust, run_id, identity_of(identity), PATIENCE_SECONDS)
    async with pool:
        yield CoordinatorClient(pool)


@contextlib.asynccontextmanager
async def reached_run(
    address: str, trust: Trust | None, wallet: Wallet, run_id: str
) -> AsyncIterator[Cluster]:
    """The run of the server at HOST:PORT, as the member with this key reaches it. Raises
    UsageError.
    """
    check_address(address)
    _, pool, _ = _linked(address, trust, run_id, wallet, PATIENCE_SECONDS)
    async with pool:
        yield Cluster(pool, CoordinatorClient(pool), Authorizer(pool))


def reaching(
    address: str, trust: Trust | None, identity: Path | None
) -> Callable[[TrainSettings], Reach]:
    """What makes the way to the server at HOST:PORT. Raises UsageError, and WalletError when it is
    called.
    """
    check_address(address)
    # one for the process, however often the way is made
    known = functools.cache(lambda: identity_of(identity))

    def reach(settings: TrainSettings) -> Reach:
        wallet = known()
        link, pool, secret = _linked(address, trust, settings.run_id, wallet, START_PATIENCE)

        async def background(chain: SolanaMember) -> None:
            await leave_wills(chain, link, CoordinatorClient(pool, wallet), settings.run_id)

        return Reach(pool, None, None, wallet, secret, Broker(link), background)

    return reach


async def leave_wills(
    chain: SolanaMember, link: ServerConnection, client: CoordinatorClient, run_id: str
) -> None:
    """Keep a signed withdraw transaction of this member at the server, until cancelled."""
    while True:
        place = (await chain.view()).run.round_id
        with contextlib.suppress(OSError, WebSocketException, Malformed, CoordinatorError):
            blockhash, _ = await client.sender.blockhash()
            leave = client.ix.leave_run(run_id, place)
            will = client.sender.transaction([leave], (), _WILL_UNITS, 0, blockhash)
            await link.keep_will(base64.b64encode(bytes(will)))
        await first_of(_elsewhere(chain, place), asyncio.sleep(RENEW))


async def _elsewhere(chain: SolanaMember, place: RoundId) -> None:
    """Until the run is in another round."""
    async for view in chain.views():
        if view.run.round_id != place:
            return
