"""Accounts that arrive torn: read again, said once, and no reason to end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import run_addresses
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.subscription import RunWatcher
from chain.faults import account_json, answer, meddling
from chain.networks import Place


async def test_an_account_that_cannot_be_read_is_read_again(embedded: Place) -> None:
    coordinator = await embedded.configured_run("torn")
    owner, at = str(coordinator.program_id), run_addresses(coordinator.program_id, "torn")
    torn = {str(at.members): 3, str(at.model): 3}

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] != "getAccountInfo" or not torn.get(body["params"][0]):
            return None
        torn[body["params"][0]] -= 1
        return answer(body, {"context": {"slot": 1}, "value": account_json(b"\xff" * 100, owner=owner)})

    async with meddling(embedded.network.rpc_url, tear) as url:
        where = Endpoint(url, embedded.network.ws_url)
        async with RpcPool([where]) as pool, SolanaMember(pool, embedded.wallet, "torn", client_version="") as member:
            assert (await member.members()).find(member.wallet) is None
            assert (await member.model()).metadata.name == "torn"
    assert not any(torn.values())


async def test_a_clock_that_cannot_be_read_does_not_end_the_watch(
    embedded: Place, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = await embedded.configured_run("clock")
    address = run_addresses(coordinator.program_id, "clock").run
    slot, run = await fetch(embedded.pool, address)
    assert run is not None
    broken = 0

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        nonlocal broken
        if body["method"] != "getMultipleAccounts" or not 0 < broken < 5:
            return None
        broken += 1
        value = [account_json(run.data, owner=str(run.owner)), account_json(b"short")]
        return answer(body, {"context": {"slot": slot + 1000}, "value": value})

    async with meddling(embedded.network.rpc_url, tear) as url, RpcPool([endpoint(url)]) as pool:
        watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.05)
        await watcher.start()
        try:
            broken = 1
            while broken < 5:
                await asyncio.sleep(0.01)
            await coordinator.set_future_epoch_rates("clock", earning=7, slashing=None)
            async with asyncio.timeout(10):
                async for seen in watcher.updates():
                    if seen.future_earning_rate == 7:
                        break
        finally:
            await watcher.close()
    assert caplog.text.count("cannot be read") == 1, "said once"
