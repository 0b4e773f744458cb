"""Tests with a node that is behind: its old answers are not used while another node is ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession, web
from solders.keypair import Keypair

from aftermath.chain import node_client
from aftermath.chain.addresses import JOIN_SCOPE, run_addresses
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.cli.connection import SignedCluster
from aftermath.rules.state import RunState
from chain.faults import answer, answer_error, faulty_websocket, meddling
from chain.funded_network import FundedNetwork


def standing_still(
    funded: FundedNetwork, *methods: str, refuses: bool = True
) -> Callable[[dict[str, Any]], Awaitable[web.StreamResponse | None]]:
    """Answer these methods with their first answers. With `refuses`, return an error for a newer
    minContextSlot.
    """
    replies: dict[str, Any] = {}

    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] not in methods:
            return None
        if refuses and body["params"][1].get("minContextSlot"):
            return answer_error(body, -32016)
        body["params"][1].pop("minContextSlot", None)
        async with (
            ClientSession() as session,
            session.post(funded.network.rpc_url, json=body) as response,
        ):
            return answer(
                body, replies.setdefault(str(body["params"][0]), (await response.json())["result"])
            )

    return lie


async def test_client_reads_its_own_writes_past_lagging_node(embedded: FundedNetwork) -> None:
    """Before, the command reported a run that it had just paused as new."""
    await embedded.open_run()
    async with meddling(
        embedded.network.rpc_url, standing_still(embedded, "getAccountInfo")
    ) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool:
            coordinator = CoordinatorClient(pool, embedded.wallet)
            before = (await coordinator.run(embedded.run_id)).state
            await coordinator.set_paused(embedded.run_id, True)
            assert before is not RunState.PAUSED
            assert (await coordinator.run(embedded.run_id)).state is RunState.PAUSED


async def test_command_sees_its_effects_past_stale_node(embedded: FundedNetwork) -> None:
    """A stale node hides an authorization that was just created, and the cost of a new run."""
    grantee = Keypair().pubkey()
    wallet = embedded.wallet
    lie = standing_still(embedded, "getMultipleAccounts", "getBalance")
    async with meddling(embedded.network.rpc_url, lie) as url:
        nodes = [Endpoint(one, embedded.network.ws_url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(nodes) as pool:
            chain = SignedCluster(pool, CoordinatorClient(pool, wallet), Authorizer(pool), wallet)
            before = await chain.balance(wallet.pubkey)
            assert await chain.authorization(wallet.pubkey, grantee, JOIN_SCOPE) is None
            await chain.sender.send_packed([chain.authorizer.ix(wallet.pubkey).create(grantee)])
            assert await chain.authorization(wallet.pubkey, grantee, JOIN_SCOPE) is not None
            assert await chain.balance(wallet.pubkey) < before


@pytest.mark.parametrize("nodes", [1, 2])
async def test_node_with_frozen_slot_is_left_for_another(
    embedded: FundedNetwork, nodes: int
) -> None:
    coordinator = await embedded.open_run()
    address = run_addresses(coordinator.program_id, embedded.run_id).run
    lie = standing_still(embedded, "getMultipleAccounts", refuses=False)
    async with meddling(embedded.network.rpc_url, lie) as url, faulty_websocket() as mute:
        endpoints = [Endpoint(one, mute.url) for one in (url, embedded.network.rpc_url)]
        async with RpcPool(endpoints[:nodes]) as pool:
            watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.3)
            await watcher.start()
            await coordinator.set_future_epoch_rates(embedded.run_id, earning=3, slashing=None)
            await asyncio.sleep(node_client.STILL_SECONDS + 5)
            await watcher.close()
    assert watcher.latest.future_earning_rate == (0 if nodes == 1 else 3)


async def test_cluster_with_frozen_slot_is_awaited(embedded: FundedNetwork) -> None:
    coordinator = await embedded.open_run()
    address = run_addresses(coordinator.program_id, embedded.run_id).run
    lie = standing_still(embedded, "getMultipleAccounts", refuses=False)
    async with (
        meddling(embedded.network.rpc_url, lie) as url,
        faulty_websocket() as mute,
        RpcPool([Endpoint(url, mute.url)] * 2) as pool,
    ):
        watcher = RunWatcher(pool, address, coordinator.program_id)
        first = await watcher.refresh()
        for _ in range(2):
            await asyncio.sleep(node_client.STILL_SECONDS + 1)
            assert await watcher.refresh(10) == first
