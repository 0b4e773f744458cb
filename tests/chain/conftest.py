"""A network and a wallet with money, on either engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from solders.keypair import Keypair

from aftermath.chain import nodes, rpc
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from aftermath.localnet import EmbeddedEngine, ValidatorEngine, validator_binary
from chain.networks import Place, network_config


@pytest.fixture(params=["embedded", pytest.param("validator", marks=pytest.mark.slow)])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    if request.param == "validator" and validator_binary() is None:
        pytest.skip("no solana-test-validator on this machine (set AFTERMATH_VALIDATOR to one)")
    engine = EmbeddedEngine() if request.param == "embedded" else ValidatorEngine()
    wallet = Wallet(Keypair())
    network = await engine.start(network_config(wallet))
    try:
        async with RpcPool([endpoint(network.rpc_url, network.ws_url)]) as pool:
            yield Place(network, pool, wallet)
    finally:
        await network.close()


@pytest.fixture
async def embedded() -> AsyncIterator[Place]:
    """For what no engine answers differently: faults made in between, and refusals before anything is sent."""
    wallet = Wallet(Keypair())
    network = await EmbeddedEngine().start(network_config(wallet))
    try:
        async with RpcPool([endpoint(network.rpc_url, network.ws_url)]) as pool:
            yield Place(network, pool, wallet)
    finally:
        await network.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits, so that a whole fail-over and return fits a second."""
    monkeypatch.setattr(rpc, "BACKOFF_FIRST", 0.01)
    monkeypatch.setattr(nodes, "LEAVE_SECONDS", 0.2)
