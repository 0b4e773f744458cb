"""Accounts that arrive torn: read again, said once, and no reason to end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import run_addresses
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.subscription import RunWatcher
from aftermath.run.errors import ChainRefused
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
    assert caplog.text.count("the Clock sysvar has 5 bytes") == 1, "said once"


async def test_attestations_that_never_can_be_read_are_given_up_in_a_sentence(embedded: Place) -> None:
    """A few readings, whatever slot the node claims: a member then leaves the epoch, and does not end."""
    coordinator = await embedded.configured_run("unread")
    owner, at = str(coordinator.program_id), run_addresses(coordinator.program_id, "unread")
    read = 0

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        nonlocal read
        if body["method"] != "getAccountInfo" or body["params"][0] != str(at.witnesses):
            return None
        read += 1
        return answer(body, {"context": {"slot": 1}, "value": account_json(b"short", owner=owner)})

    async with meddling(embedded.network.rpc_url, tear) as url:
        where = Endpoint(url, embedded.network.ws_url)
        async with RpcPool([where]) as pool, SolanaMember(pool, embedded.wallet, "unread", client_version="") as member:
            stored = replace(member._watcher.latest.rounds[0], attestations=2, clients=3)
            member._watcher._latest = replace(member._watcher.latest, head=0, rounds=(stored,) * 4)
            with pytest.raises(ChainRefused, match="as they are on chain"):
                await member.attestations(stored)
    assert read == 4


async def test_a_clock_that_cannot_be_read_is_asked_for_again(embedded: Place) -> None:
    """Also where a member reads the run anew before it acts, not only in its watch."""
    await embedded.configured_run("anew")
    torn = 3

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        nonlocal torn
        if body["method"] != "getMultipleAccounts" or not torn:
            return None
        torn -= 1
        return answer(body, {"context": {"slot": 1}, "value": [None, account_json(b"short")]})

    async with meddling(embedded.network.rpc_url, tear) as url:
        where = Endpoint(url, embedded.network.ws_url)
        async with RpcPool([where]) as pool, SolanaMember(pool, embedded.wallet, "anew", client_version="") as member:
            assert (await member.run(fresh=True)).run_id == "anew"
    assert not torn
