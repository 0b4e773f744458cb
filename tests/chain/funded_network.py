"""A network with a funded wallet, and helpers to create and configure runs."""

from __future__ import annotations

import functools
import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain import node_client
from aftermath.chain.addresses import EVERYONE
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import endpoint
from aftermath.chain.funding import ensure_funds
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.config.spec import spec_hash
from aftermath.localnet import LocalnetConfig, Network
from aftermath.programs import AUTHORIZER_ID, AUTHORIZER_SO, COORDINATOR_ID, COORDINATOR_SO
from chain.jumping_loop import LoopTime
from programs.scenario import SPEC

PROGRAMS = (
    (Pubkey.from_string(COORDINATOR_ID), COORDINATOR_SO),
    (Pubkey.from_string(AUTHORIZER_ID), AUTHORIZER_SO),
)
SCHEMA_HASH = bytes(range(32))
RICH = 100_000_000_000
_RUN_NUMBERS = itertools.count(1)


@functools.cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def share_tls_context(patch: pytest.MonkeyPatch) -> None:
    """Share one TLS context, because each client would take 25 ms to read the machine's
    certificates.
    """

    def http(_: node_client.Internet) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=node_client.HTTP_SECONDS, verify=_tls_context())

    patch.setattr(node_client.Internet, "http", http)


def config_table(**changes: Any) -> dict[str, Any]:
    table = {
        "warmup_time": 60,
        "cooldown_time": 60,
        "min_round_time": 1,
        "max_round_train_time": 60,
        "round_witness_time": 2,
        "epoch_time": 0,
        "global_batch_size_warmup_tokens": 0,
        "rounds_per_epoch": 3,
        "total_steps": 100,
        "max_seq_len": 0,
        "init_min_clients": 1,
        "min_clients": 1,
        "witness_nodes": 0,
        "overlap": 1,
        "global_batch_size_start": 8,
        "global_batch_size_end": 8,
        "verification_percent": 0,
        "join_bond": 0,
        "waiting_for_members_extra_time": 1,
    }
    return {**table, **changes}


def model_table() -> dict[str, Any]:
    return {
        "max_seq_len": 64,
        "cold_start_warmup_steps": 0,
        "checkpoint": {"kind": 2, "repo": "/tmp/model", "revision": ""},
        "spec": {"len": len(SPEC), "hash": spec_hash(SPEC)},
    }


@dataclass
class FundedNetwork:
    """A running network, a funded wallet, and the id of a run that does not exist yet."""

    network: Network
    pool: RpcPool
    wallet: Wallet
    run_id: str = field(default_factory=lambda: f"run-{next(_RUN_NUMBERS)}")

    @property
    def coordinator(self) -> CoordinatorClient:
        return CoordinatorClient(self.pool, self.wallet)

    @property
    def rpc_port(self) -> int:
        return int(self.network.rpc_url.rsplit(":", 1)[1])

    @property
    def ws_port(self) -> int:
        return int(self.network.ws_url.rsplit(":", 1)[1])

    async def configured_run(self, run_id: str | None = None, **config: Any) -> CoordinatorClient:
        """Create and configure a run; without an id, this network's own."""
        run_id = run_id or self.run_id
        coordinator = self.coordinator
        await coordinator.create_run(run_id)
        metadata = {
            "name": run_id,
            "description": "a test",
            "num_parameters": 1000,
            "vocab_size": 320,
        }
        schema = {"hash": SCHEMA_HASH, "tier_widths": [64, 32]}
        parts = [
            *coordinator.ix.write_spec(run_id, SPEC),
            coordinator.ix.update(run_id, config=config_table(**config), model=model_table()),
            coordinator.ix.update(run_id, metadata=metadata, schema=schema),
        ]
        await coordinator.sender.send_packed(parts)
        return coordinator

    async def open_run(self, run_id: str | None = None, **config: Any) -> CoordinatorClient:
        """Create, configure and start a run that everybody may join. Without an id it is this
        network's own.
        """
        run_id = run_id or self.run_id
        coordinator = await self.configured_run(run_id, **config)
        await self.admit_all()
        await coordinator.set_paused(run_id, False)
        return coordinator

    async def admit_all(self) -> None:
        """Let everybody join the runs of this wallet."""
        ix = Authorizer(self.pool).ix(self.wallet.pubkey)
        if await Authorizer(self.pool).fetch(self.wallet.pubkey, EVERYONE) is None:
            await self.coordinator.sender.send_packed(
                [ix.create(EVERYONE), ix.grantor_update(EVERYONE, True)]
            )


@asynccontextmanager
async def fund_network(network: Network) -> AsyncIterator[FundedNetwork]:
    """Yield a new, funded wallet on a running network."""
    wallet = Wallet(Keypair())
    async with RpcPool([endpoint(network.rpc_url, network.ws_url)]) as pool:
        await ensure_funds(pool, wallet.pubkey, RICH)
        yield FundedNetwork(network, pool, wallet)


def network_config(*wallets: Wallet) -> LocalnetConfig:
    airdrops = [(wallet.pubkey, RICH) for wallet in wallets]
    return LocalnetConfig(rpc_port=0, programs=PROGRAMS, airdrops=airdrops, time=LoopTime())
