"""A server in this process with a started run, and members connected over real sockets."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain.member import SolanaMember
from aftermath.chain.wallet import Wallet
from aftermath.rules.members import Seat
from aftermath.server.client_backend import ServerRpcPool
from aftermath.server.connection import ServerConnection
from aftermath.server.run_owner import owner_cluster, owner_wallet
from aftermath.server.server import RunServer, ServerConfig, open_server
from aftermath.server.tls_trust import TlsTrust
from chain.funded_network import SCHEMA_HASH, FundedNetwork

RUN = "demo"
PATIENCE = 60.0  # seconds: a deadline for broken code, not an expectation


@asynccontextmanager
async def serving(
    state: Path | None = None,
    *,
    port: int = 0,
    allowed: frozenset[Pubkey] | None = None,
    tls: ssl.SSLContext | None = None,
    withdraw: bool = True,
    **rules: int,
) -> AsyncIterator[RunServer]:
    """Run a server on loopback. Create and start its run if there is none."""
    config = ServerConfig(
        run_id=RUN,
        host="127.0.0.1",
        port=port,
        state=state,
        tls=tls,
        allowed=allowed,
        withdraw=withdraw,
    )
    wallet = owner_wallet(state)
    async with open_server(config) as server:
        async with owner_cluster(server.node, wallet) as chain:
            if not await chain.coordinator.list_runs():
                await FundedNetwork(None, chain.pool, wallet).open_run(RUN, **rules)  # type: ignore[arg-type]
        await server.listen()
        yield server


class Visitor:
    """A member without a model: its keys, its connection and its client of the run."""

    def __init__(
        self, server: RunServer, key: Keypair | None = None, trust: TlsTrust | None = None
    ) -> None:
        self.wallet = Wallet(key or Keypair())
        self.peer = Keypair()
        self.link = ServerConnection(f"localhost:{server.port}", trust, RUN, self.wallet, self.peer)
        self.pool = ServerRpcPool(self.link, patience=5.0, seed=0)
        self.chain = SolanaMember(self.pool, self.wallet, RUN, client_version="1.0.0")

    async def __aenter__(self) -> Visitor:
        await self.pool.__aenter__()
        try:
            await self.chain.start()
        except BaseException:
            await self.pool.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.chain.close()
        await self.pool.close()

    async def join(self, **changes: Any) -> None:
        arguments = {
            "p2p": bytes(self.peer.pubkey()),
            "tier": 0,
            "weight": 10,
            "schema_hash": SCHEMA_HASH,
        }
        await self.chain.join(**{**arguments, "stateless": False, **changes})

    async def seat(self) -> Seat | None:
        members = (await self.chain.view(fresh=True)).members
        index = members.find(self.wallet.public)
        return None if index is None else members.seats[index]


async def until(condition: Callable[[], Any], description: str) -> Any:
    """Wait until a condition is truthy, and return its value."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not (value := condition()):
                await asyncio.sleep(0.02)
            return value
    except TimeoutError:
        raise AssertionError(f"never: {description}") from None
