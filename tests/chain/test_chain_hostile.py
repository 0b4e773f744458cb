"""Tests with nodes that lie, lag, lose replies or send garbage: everything is checked, and nothing
is sent twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import struct
from typing import Any

import httpx
import pytest
import zstandard
from aiohttp import web
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.chain import funding, rpc
from aftermath.chain.account_socket import SolanaSession
from aftermath.chain.accounts import fetch
from aftermath.chain.addresses import CLOCK, run_addresses
from aftermath.chain.client import CoordinatorClient
from aftermath.chain.clock import ChainClock
from aftermath.chain.endpoints import Endpoint, endpoint
from aftermath.chain.failures import BadReply, RpcRejected
from aftermath.chain.node_client import NodeClient
from aftermath.chain.rpc import RpcPool
from aftermath.chain.run_watcher import RunWatcher
from aftermath.coordinator.errors import CoordinatorError, Refused, Unavailable
from chain.faults import account_json, answer, answer_error, meddling
from chain.funded_network import FundedNetwork


def node_that_sends(value: Any) -> NodeClient:
    def reply(request: httpx.Request) -> httpx.Response:
        result = {"context": {"slot": 9}, "value": value}
        return httpx.Response(
            200, json={"jsonrpc": "2.0", "id": json.loads(request.content)["id"], "result": result}
        )

    return NodeClient(
        "http://node.example", httpx.AsyncClient(transport=httpx.MockTransport(reply)), set()
    )


async def test_account_is_read_with_its_slot() -> None:
    raw = bytes(range(256)) * 5
    slot, account = await node_that_sends(account_json(raw)).account(Pubkey.default())
    assert account is not None
    assert (slot, account.slot, account.data, account.owner) == (9, 9, raw, Pubkey.default())


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        "x",
        7,
        account_json(zstandard.compress(bytes(50 << 20)), "base64+zstd"),  # a bomb
        account_json(b"x", owner="nobody"),
        account_json(b"x", lamports="many"),
        account_json(b"x", lamports=1 << 64),
        account_json(b"x", data=["!!", "base64"]),
        account_json(b"x", data="AA=="),
        account_json(b"x", data=None),
    ],
)
async def test_malformed_account_is_the_nodes_failure(value: Any) -> None:
    with pytest.raises(BadReply):
        await node_that_sends(value).account(Pubkey.default())


def test_chain_time_is_best_lower_bound() -> None:
    now = itertools.count(100.0, 0.25)
    clock = ChainClock(lambda: next(now))
    with pytest.raises(CoordinatorError, match="is unknown until"):
        clock.now()
    clock.observe(1000)  # read at 100.00
    clock.observe(990)  # a late one changes nothing
    assert clock.now() == 1000
    clock.observe_sysvar(struct.pack("<QqQQq", 1, 2, 3, 4, 2000))
    assert clock.now() == 2000
    with pytest.raises(CoordinatorError, match="Clock sysvar"):
        clock.observe_sysvar(b"short")


async def test_lost_replies_never_send_transaction_twice(
    funded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node answers one call in three with 429 or 503. In half of these cases it has executed
    the request.
    """
    # so that many failures in a row fit a call's patience
    monkeypatch.setattr(rpc, "BACKOFF_FIRST", 0.02)
    chance = random.Random(7)

    async def fail(_: dict[str, Any]) -> web.StreamResponse | None:
        roll = chance.random()
        return None if roll > 0.2 else web.Response(status=429 if roll > 0.1 else 503)

    coordinator = await funded.configured_run("once")
    seq = (await coordinator.run("once")).seq
    async with (
        meddling(funded.network.rpc_url, fail, fail) as url,
        RpcPool([endpoint(url)]) as pool,
    ):
        through = CoordinatorClient(pool, funded.wallet)
        for rate in range(10):
            await through.set_future_epoch_rates("once", earning=rate, slashing=None)
        assert through.sender.spend.transactions == 10
    run = await coordinator.run("once")
    assert (run.seq, run.future_earning_rate) == (seq + 10, 9)


async def test_expired_transaction_is_built_again(embedded: FundedNetwork) -> None:
    swallowed: list[str] = []

    async def swallow(body: dict[str, Any]) -> web.StreamResponse | None:
        if (
            body["method"] == "sendTransaction"
            and len(set(swallowed)) < 2
            and body["params"][0] not in swallowed[:1]
        ):
            swallowed.append(body["params"][0])
            return answer(body, "1" * 64)
        if body["method"] == "getBlockHeight":
            return answer(body, 1 << 40)
        return None

    coordinator = await embedded.configured_run("late")
    seq = (await coordinator.run("late")).seq
    async with meddling(embedded.network.rpc_url, swallow) as url, RpcPool([endpoint(url)]) as pool:
        await CoordinatorClient(pool, embedded.wallet).set_future_epoch_rates(
            "late", earning=1, slashing=None
        )
    assert (await coordinator.run("late")).seq == seq + 1
    assert swallowed


async def test_transaction_that_never_lands_is_reported(embedded: FundedNetwork) -> None:

    async def swallow(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] == "sendTransaction":
            return answer(body, "1" * 64)
        return answer(body, 1 << 40) if body["method"] == "getBlockHeight" else None

    coordinator = await embedded.configured_run("never")
    async with meddling(embedded.network.rpc_url, swallow) as url, RpcPool([endpoint(url)]) as pool:
        with pytest.raises(Unavailable, match="did not confirm"):
            await CoordinatorClient(pool, embedded.wallet).set_future_epoch_rates(
                "never", earning=1, slashing=None
            )
    assert (await coordinator.run("never")).future_earning_rate == 0


async def test_lagging_node_is_ignored_and_fallback_is_used(funded: FundedNetwork) -> None:
    """The node is at an old slot. Like real nodes, it refuses a later minContextSlot and otherwise
    answers with the old state.
    """
    coordinator = await funded.configured_run("lag")
    address = run_addresses(coordinator.program_id, "lag").run
    old_slot, old = await fetch(funded.pool, address)
    _, clock = await fetch(funded.pool, CLOCK)
    assert old is not None
    assert clock is not None
    refusals = 0

    async def lag(body: dict[str, Any]) -> web.StreamResponse | None:
        nonlocal refusals
        if body["method"] != "getMultipleAccounts":
            return None
        if (body["params"][1].get("minContextSlot") or 0) > old_slot:
            refusals += 1
            return answer_error(body, -32016, "Minimum context slot has not been reached")
        values = [account_json(one.data, owner=str(one.owner)) for one in (old, clock)]
        return answer(body, {"context": {"slot": old_slot}, "value": values})

    async with meddling(funded.network.rpc_url, lag) as url:
        ws = funded.network.ws_url
        where = [Endpoint(url, ws), Endpoint(funded.network.rpc_url, ws)]
        async with RpcPool(where) as pool:
            watcher = RunWatcher(pool, address, coordinator.program_id, silence=0.1)
            await watcher.start()
            try:
                # a later slot than that of the lagging node
                async with asyncio.timeout(60):
                    while (await fetch(funded.pool, address))[0] == old_slot:
                        await asyncio.sleep(0.05)
                await coordinator.set_future_epoch_rates("lag", earning=7, slashing=None)
                async with asyncio.timeout(60):
                    async for run in watcher.updates():
                        if run.future_earning_rate == 7:
                            break
                for _ in range(5):
                    assert (await watcher.refresh()).future_earning_rate == 7
                assert refusals >= 1
            finally:
                await watcher.close()


@pytest.mark.parametrize(
    "nonsense", [None, [], {"context": {"slot": 1}}, {"context": {"slot": -1}, "value": 1}]
)
async def test_malformed_results_are_reported(embedded: FundedNetwork, nonsense: Any) -> None:
    async def lie(body: dict[str, Any]) -> web.StreamResponse | None:
        return (
            answer(body, nonsense)
            if body["method"] in ("getAccountInfo", "simulateTransaction")
            else None
        )

    async with meddling(embedded.network.rpc_url, lie) as url, RpcPool([endpoint(url)]) as pool:
        with pytest.raises(Unavailable, match="the RPC node sent"):
            await CoordinatorClient(pool).run("r")
        with pytest.raises(Unavailable, match="the RPC node"):
            await CoordinatorClient(pool, embedded.wallet).tick("r")


@pytest.mark.parametrize("code", [-32601, -32603, 429])
async def test_faucet_without_funds_is_insufficient_funds(
    embedded: FundedNetwork, code: int
) -> None:
    """Loopback may be a tunnel to a cluster whose faucet is empty."""

    async def refuse(body: dict[str, Any]) -> web.StreamResponse | None:
        return answer_error(body, code) if body["method"] == "requestAirdrop" else None

    async with meddling(embedded.network.rpc_url, refuse) as url, RpcPool([endpoint(url)]) as pool:
        with pytest.raises(Refused) as caught:
            await funding.ensure_funds(pool, Keypair().pubkey(), 1_000)
    assert caught.value.name == "InsufficientFunds"


async def test_failed_call_leaves_no_background_tasks(embedded: FundedNetwork) -> None:
    async def hang_or_refuse(body: dict[str, Any]) -> web.StreamResponse | None:
        if body["method"] == "simulateTransaction":
            simulating.set()
            await asyncio.sleep(60)
        if body["method"] == "getLatestBlockhash":
            await simulating.wait()
            return answer_error(body, -32602)
        return None

    simulating = asyncio.Event()
    async with (
        meddling(embedded.network.rpc_url, hang_or_refuse) as url,
        RpcPool([endpoint(url)]) as pool,
    ):
        through = CoordinatorClient(pool, embedded.wallet)
        with pytest.raises(RpcRejected):
            await through.tick("r")
        assert not [task for task in asyncio.all_tasks() if "Sender" in repr(task.get_coro())]


TWO_ERRORS = '{"jsonrpc":"2.0","error":{"code":-32002,"message":"x"},"error":null,"id":%s}'
"""msgspec reads the second `error`, and solders panics on the first, which has no data."""


class OneMessage:
    """A connection that delivers one message."""

    def __init__(self, message: str) -> None:
        self._message = message

    async def recv(self) -> str:
        return self._message

    async def send(self, message: str) -> None:
        raise NotImplementedError


async def test_websocket_message_panicking_solders_is_a_bad_reply() -> None:
    session = SolanaSession(OneMessage(TWO_ERRORS % 1))
    with pytest.raises(BadReply):
        await session.recv()


async def test_genesis_reply_panicking_solders_is_node_failure() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=TWO_ERRORS % json.loads(request.content)["id"])

    async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as session:
        pool = RpcPool([Endpoint("http://node.example", "ws://node.example")], patience=0.3)
        pool._nodes.all[0].client = NodeClient("http://node.example", session, set())
        with pytest.raises(Unavailable):
            await pool.genesis()


async def test_far_future_slot_is_forgotten_after_outage(embedded: FundedNetwork) -> None:
    """Every node is behind such a slot, so the watcher forgets it when no node could answer."""
    coordinator = await embedded.configured_run("far")
    async with RpcPool([endpoint(embedded.network.rpc_url)]) as pool:
        address = run_addresses(coordinator.program_id, "far").run
        watcher = RunWatcher(pool, address, coordinator.program_id)
        await watcher.start()
        try:
            watcher.newest.slot = 1 << 62
            with pytest.raises(Unavailable):
                await watcher.refresh(0.5)
            await watcher.refresh(5.0)
        finally:
            await watcher.close()
