"""Tests of accounts that arrive incomplete: the client reads them again, logs them once, and does
not end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from solders.system_program import TransferParams, transfer

from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import EVERYONE, run_addresses
from aftermath.chain.authorizer import Authorizer
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.coordinator.errors import Refused
from aftermath.rules.run import Round
from chain.faults import account_json, answer, meddling
from chain.funded_network import SCHEMA_HASH, FundedNetwork


async def test_unreadable_account_is_read_again(embedded: FundedNetwork) -> None:
    coordinator = await embedded.configured_run("torn")
    owner = str(coordinator.program_id)
    at = run_addresses(coordinator.program_id, "torn")
    torn = {str(at.members): 3, str(at.model): 3}

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        places = body["params"][0] if body["method"] == "getMultipleAccounts" else ()
        place = next((place for place in torn if place in places and torn[place]), None)
        if place is None:
            return None
        torn[place] -= 1
        values = [account_json(b"\xff" * 100, owner=owner) for _ in places]
        return answer(body, {"context": {"slot": 1 << 40}, "value": values})

    async with meddling(embedded.network.rpc_url, tear) as url:
        where = Endpoint(url, embedded.network.ws_url)
        async with (
            RpcPool([where]) as pool,
            SolanaMember(pool, embedded.wallet, "torn", client_version="") as member,
        ):
            assert (await member.view()).members.find(member.wallet) is None
            assert (await member.view()).model.metadata.name == "torn"
    assert not any(torn.values())


async def test_lamports_at_authorization_address_do_not_block_join(
    embedded: FundedNetwork,
) -> None:
    coordinator = await embedded.open_run("sprinkled")
    run = run_addresses(coordinator.program_id, "sprinkled").run
    authorizer = Authorizer(embedded.pool)
    grantor = embedded.wallet.pubkey
    sender = coordinator.sender
    for grantee in (EVERYONE, grantor):
        [place] = authorizer.size(grantor, grantee, scope=bytes(run))
        params = TransferParams(from_pubkey=grantor, to_pubkey=place, lamports=1_000_000)
        await sender.send_packed([transfer(params)])
        assert await authorizer.fetch(grantor, grantee, bytes(run)) is None
    where = endpoint(embedded.network.rpc_url, embedded.network.ws_url)
    async with (
        RpcPool([where]) as pool,
        SolanaMember(pool, embedded.wallet, "sprinkled", client_version="") as member,
    ):
        await member.join(
            p2p=member.wallet, tier=0, weight=10, schema_hash=SCHEMA_HASH, stateless=False
        )
    ix = authorizer.ix(grantor)
    await sender.send_packed(
        [ix.create(EVERYONE, bytes(run)), ix.grantor_update(EVERYONE, True, bytes(run))]
    )
    authorization = await authorizer.fetch(grantor, EVERYONE, bytes(run))
    assert authorization is not None
    assert authorization.active


async def test_unreadable_clock_does_not_end_watch(
    embedded: FundedNetwork, caplog: pytest.LogCaptureFixture
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
                async for update in watcher.updates():
                    if update.future_earning_rate == 7:
                        break
        finally:
            await watcher.close()
    assert caplog.text.count("the Clock sysvar has 5 bytes") == 1, "said once"


def _tearing(
    funded: FundedNetwork, read: list[int]
) -> Callable[[], AbstractAsyncContextManager[Endpoint]]:
    """Return nodes that send only a part of the attestations and answer everything else. `read`
    counts the reads per node.
    """
    at = run_addresses(funded.coordinator.program_id, funded.run_id)

    @asynccontextmanager
    async def node() -> AsyncIterator[Endpoint]:
        index = len(read)
        read.append(0)

        async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
            if body["method"] != "getAccountInfo" or body["params"][0] != str(at.witnesses):
                return None
            read[index] += 1
            slot = 1_000_000 + sum(read)
            value = account_json(b"short", owner=str(funded.coordinator.program_id))
            return answer(body, {"context": {"slot": slot}, "value": value})

        async with meddling(funded.network.rpc_url, tear) as url:
            yield Endpoint(url, funded.network.ws_url)

    return node


def _with_attestations(member: SolanaMember) -> Round:
    """Return a view in which two members have attested the round."""
    stored = replace(member._watcher.latest.rounds[0], attestations=2, clients=3)
    member._watcher.newest._run = replace(member._watcher.latest, head=0, rounds=(stored,) * 4)
    return stored


@pytest.mark.parametrize("nodes", [1, 3])
async def test_unreadable_attestations_end_in_error(embedded: FundedNetwork, nodes: int) -> None:
    """After a few reads from every node, whatever slot it claims, a member leaves the epoch but
    does not end.
    """
    await embedded.configured_run()
    read: list[int] = []
    node = _tearing(embedded, read)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(
            RpcPool([await stack.enter_async_context(node()) for _ in range(nodes)])
        )
        member = SolanaMember(pool, embedded.wallet, embedded.run_id, client_version="")
        stored = _with_attestations(await stack.enter_async_context(member))
        with pytest.raises(Refused, match=r"sends valid attestations") as caught:
            await member.attestations(stored)
    assert caught.value.name == "Unreadable"
    assert read == [6 // nodes] * nodes


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "while the node answers other calls"])
async def test_partial_attestations_are_read_from_next_node(
    embedded: FundedNetwork, busy: bool
) -> None:
    await embedded.configured_run()
    read: list[int] = []
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(_tearing(embedded, read)())
        second = endpoint(embedded.network.rpc_url, embedded.network.ws_url)
        pool = await stack.enter_async_context(RpcPool([first, second]))
        member = SolanaMember(pool, embedded.wallet, embedded.run_id, client_version="")
        stored = _with_attestations(await stack.enter_async_context(member))

        async def others() -> None:
            while busy:
                await pool.genesis()
                await asyncio.sleep(0.01)

        other_reads = asyncio.ensure_future(others())
        async with asyncio.timeout(10):
            assert len(await member.attestations(stored)) == 2
        other_reads.cancel()
    assert read == [2]


async def test_unreadable_clock_is_requested_again(embedded: FundedNetwork) -> None:
    """A member also asks again when it reads the run before it acts, not only while it follows the
    run.
    """
    await embedded.configured_run("clock-again")
    torn = 3

    async def tear(body: dict[str, Any]) -> web.StreamResponse | None:
        nonlocal torn
        if body["method"] != "getMultipleAccounts" or not torn:
            return None
        torn -= 1
        return answer(body, {"context": {"slot": 1}, "value": [None, account_json(b"short")]})

    async with meddling(embedded.network.rpc_url, tear) as url:
        where = Endpoint(url, embedded.network.ws_url)
        async with (
            RpcPool([where]) as pool,
            SolanaMember(pool, embedded.wallet, "clock-again", client_version="") as member,
        ):
            assert (await member.view(fresh=True)).run.run_id == "clock-again"
    assert not torn
