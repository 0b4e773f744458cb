"""Tests that claims which would end a member are accepted only if no other node contradicts them: a
finished, closed or far-ahead run, a missing program, an unreadable spec.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from solders.keypair import Keypair

from aftermath.base.errors import Unsuitable
from aftermath.chain.addresses import run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.endpoints import Endpoint
from aftermath.chain.reader import RunReader
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.chain.views import model_account, run_account
from aftermath.coordinator.errors import CoordinatorError, NoSuchRun
from aftermath.rules.state import RunState
from chain.faults import answer, faulty_websocket, meddling
from chain.funded_network import FundedNetwork
from programs.scenario import SPEC

Forge = Callable[[dict[str, Any]], dict[str, Any] | None]
"""What becomes of the JSON of an account."""
AWAY = Endpoint("http://127.0.0.1:9", "ws://127.0.0.1:9")


@asynccontextmanager
async def forging(funded: FundedNetwork, forge: Forge) -> AsyncIterator[Endpoint]:
    """Yield a node with a mute websocket. It answers like the network, but passes every account
    through `forge`.
    """
    async with aiohttp.ClientSession() as session, faulty_websocket() as mute:

        async def forged(body: dict[str, Any]) -> web.StreamResponse | None:
            if body["method"] not in ("getMultipleAccounts", "getAccountInfo"):
                return None
            async with session.post(funded.network.rpc_url, json=body) as response:
                reply = await response.json()
            if "result" not in reply:
                return web.json_response(reply)
            value = reply["result"]["value"]
            every = value if isinstance(value, list) else [value]
            forged_accounts = [None if account is None else forge(account) for account in every]
            return answer(
                body,
                {
                    **reply["result"],
                    "value": forged_accounts if isinstance(value, list) else forged_accounts[0],
                },
            )

        async with meddling(funded.network.rpc_url, forged) as url:
            yield Endpoint(url, mute.url)


def is_run(account: dict[str, Any]) -> bool:
    return len(base64.b64decode(account["data"][0])) == run_account().size


def finished(account: dict[str, Any]) -> dict[str, Any]:
    """Return the run as finished, with a higher `seq` than any other state."""
    if not is_run(account):
        return account
    data = bytearray(base64.b64decode(account["data"][0]))
    data[run_account().offset("state")] = RunState.FINISHED
    data[run_account().offset("seq")] += 1
    return {**account, "data": [base64.b64encode(data).decode(), "base64"]}


def far_ahead(account: dict[str, Any]) -> dict[str, Any]:
    """Return the run in a state after many more changes."""
    if not is_run(account):
        return account
    data = bytearray(base64.b64decode(account["data"][0]))
    data[run_account().offset("seq") + 2] = 1
    return {**account, "data": [base64.b64encode(data).decode(), "base64"]}


def no_run(account: dict[str, Any]) -> dict[str, Any] | None:
    return None if is_run(account) else account


def nothing(_: dict[str, Any]) -> None:
    return None


def with_spec(spec: bytes) -> Forge:
    """Return a function that replaces the training spec of a run and its hash."""

    def forge(account: dict[str, Any]) -> dict[str, Any]:
        data = bytearray(base64.b64decode(account["data"][0]))
        layout = model_account()
        if len(data) != layout.size:
            return account
        parts = {
            "spec": spec,
            "spec_len": len(spec).to_bytes(2, "little"),
            "spec_hash": hashlib.sha256(spec).digest() if spec else bytes(32),
        }
        for name, value in parts.items():
            start = layout.offset(name)
            data[start : start + len(value)] = value
        return {**account, "data": [base64.b64encode(data).decode(), "base64"]}

    return forge


UNREADABLE = with_spec(SPEC.replace(b"HfLlama", b"HfMamba"))
OTHER_DATA = with_spec(SPEC.replace(b'"data_hash":""', b'"data_hash":"%s"' % (b"ab" * 32)))


class Switch:
    """Forges accounts once it is switched on."""

    def __init__(self, forge: Forge) -> None:
        self.on = False
        self._forge = forge

    def __call__(self, account: dict[str, Any]) -> dict[str, Any] | None:
        return self._forge(account) if self.on else account


@asynccontextmanager
async def watched(
    funded: FundedNetwork, *nodes: Forge | Endpoint | None
) -> AsyncIterator[tuple[CoordinatorClient, RpcPool, RunWatcher]]:
    """Yield a run and a watcher that uses these nodes. None stands for an honest node."""
    coordinator = await funded.open_run()
    honest = Endpoint(funded.network.rpc_url, funded.network.ws_url)
    async with AsyncExitStack() as stack:
        endpoints = []
        for node in nodes:
            if callable(node):
                endpoints.append(await stack.enter_async_context(forging(funded, node)))
            else:
                endpoints.append(node or honest)
        pool = await stack.enter_async_context(RpcPool(endpoints))
        address = run_addresses(coordinator.program_id, funded.run_id).run
        watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.3)
        await watcher.start()
        stack.push_async_callback(watcher.close)
        yield coordinator, pool, watcher


async def wait_for_seq(watcher: RunWatcher, seq: int) -> None:
    async with asyncio.timeout(60):
        async for run in watcher.updates():
            if run.seq >= seq:
                return


async def changed(funded: FundedNetwork, rate: int) -> int:
    coordinator = funded.coordinator
    await coordinator.set_future_epoch_rates(funded.run_id, earning=rate, slashing=None)
    return (await coordinator.run(funded.run_id)).seq


@pytest.mark.parametrize(
    "lie",
    [finished, no_run, nothing, far_ahead],
    ids=["finished", "closed", "unknown", "far ahead"],
)
async def test_state_contradicted_by_one_node_is_ignored(
    embedded: FundedNetwork, lie: Forge
) -> None:
    node = Switch(lie)
    async with watched(embedded, node, None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        node.on = True
        for rate in (3, 4):
            await wait_for_seq(watcher, await changed(embedded, rate))
            view = await reader.view()
            assert view.run.state is RunState.WAITING_FOR_MEMBERS
            assert view.run.future_earning_rate == rate
        reader.last = None
        assert (await reader.view()).model.metadata.name == embedded.run_id


async def test_finished_run_at_start_contradicted_is_ignored(
    embedded: FundedNetwork,
) -> None:
    async with watched(embedded, finished, None) as (_, _, watcher):
        assert watcher.latest.state is RunState.WAITING_FOR_MEMBERS


@pytest.mark.parametrize("other", [None, AWAY], ids=["agrees", "does not answer"])
async def test_end_of_run_without_contradiction_is_accepted(
    embedded: FundedNetwork, other: Endpoint | None
) -> None:
    async with watched(embedded, None, other) as (coordinator, _, watcher):
        await coordinator.set_paused(embedded.run_id, True)
        await coordinator.close_run(embedded.run_id)
        with pytest.raises(NoSuchRun, match="was closed"):
            await wait_for_seq(watcher, 1 << 60)


async def test_finish_confirmed_later_by_second_node_is_accepted(
    embedded: FundedNetwork, caplog: pytest.LogCaptureFixture
) -> None:
    first = Switch(finished)
    second = Switch(finished)
    async with watched(embedded, first, second) as (_, _, watcher):
        first.on = True
        asyncio.get_running_loop().call_later(0.8, setattr, second, "on", True)
        assert (await watcher.refresh(5)).state is RunState.FINISHED
    assert not [record for record in caplog.records if record.levelname == "WARNING"], (
        "honest nodes lag"
    )


async def test_missing_program_contradicted_by_one_node_is_ignored(embedded: FundedNetwork) -> None:
    await embedded.configured_run()
    async with (
        forging(embedded, nothing) as forgetful,
        RpcPool([forgetful, Endpoint(embedded.network.rpc_url, embedded.network.ws_url)]) as pool,
    ):
        client = CoordinatorClient(pool)
        assert (await client.run(embedded.run_id)).run_id == embedded.run_id
        assert (await client.snapshot(embedded.run_id))[0].run_id == embedded.run_id


@pytest.mark.parametrize("nodes", [1, 2])
async def test_missing_program_without_contradiction_is_accepted(
    embedded: FundedNetwork, nodes: int
) -> None:
    honest = Endpoint(embedded.network.rpc_url, embedded.network.ws_url)
    async with RpcPool([honest] * nodes) as pool:
        client = CoordinatorClient(pool, program_id=Keypair().pubkey())
        with pytest.raises(CoordinatorError, match="there is no program"):
            await client.run(embedded.run_id)


@pytest.mark.parametrize(
    "lie", [UNREADABLE, OTHER_DATA, with_spec(b"")], ids=["unreadable", "other data", "none"]
)
async def test_spec_contradicted_by_one_node_is_ignored(
    embedded: FundedNetwork, lie: Forge
) -> None:
    node = Switch(lie)
    async with watched(embedded, node, None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        honest = (await reader.view()).model
        node.on = True
        for paused in (True, False):
            await coordinator.set_paused(embedded.run_id, paused)
            if paused:
                await coordinator.update_client_version(embedded.run_id, "x")
            await wait_for_seq(watcher, (await coordinator.run(embedded.run_id)).seq)
            model = (await reader.view()).model
            assert model == replace(honest, client_version="x")
        client = CoordinatorClient(pool)
        assert not (await client.snapshot(embedded.run_id))[1].spec_error


async def test_unreadable_spec_at_start_contradicted_is_ignored(embedded: FundedNetwork) -> None:
    async with watched(embedded, UNREADABLE, None) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        assert (await reader.view()).model.configured
        assert (await CoordinatorClient(pool).snapshot(embedded.run_id))[1].configured


@pytest.mark.parametrize("nodes", [1, 2])
async def test_unreadable_spec_without_contradiction_is_accepted(
    embedded: FundedNetwork, nodes: int
) -> None:
    async with watched(embedded, *[UNREADABLE] * nodes) as (coordinator, pool, watcher):
        reader = RunReader(pool, coordinator.program_id, embedded.run_id, watcher)
        with pytest.raises(Unsuitable, match="HfMamba"):
            await reader.view()
        with pytest.raises(Unsuitable, match="HfMamba"):
            await CoordinatorClient(pool).snapshot(embedded.run_id)
