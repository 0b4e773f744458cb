"""Tests of the RPC pool over real sockets, with nodes that fail in many ways."""

from __future__ import annotations

import asyncio
import itertools
import json

import httpx
import pytest

from aftermath.base.errors import UsageError
from aftermath.chain import defaults, node_client, nodes, rpc
from aftermath.chain.endpoints import CLUSTERS, Endpoint, endpoint, shown
from aftermath.chain.failures import RpcRejected, TransactionFailed
from aftermath.chain.node_client import NodeClient
from aftermath.chain.rpc import RpcPool, WrongCluster
from aftermath.coordinator.errors import CoordinatorError, Unavailable
from chain.scripted_node import (
    Answer,
    Node,
    cluster,
    error,
    get_slot,
    hang,
    result,
    serving,
    status,
    text,
)


@pytest.mark.parametrize(
    "fault",
    [
        *(status(code) for code in (429, 503)),
        *(
            error(code)
            for code in (
                -32000,
                -32002,
                -32003,
                -32005,
                -32007,
                -32016,
                -32099,
                -32429,
                -32603,
                429,
                -1,
            )
        ),
        text('{"error": "Too many requests"}'),
        text('{"error": {"code": "rate_limited", "message": "Too many requests"}}'),
        text("<html>"),
        text("[]"),
        text("[" * 100_000),
        text('{"result": ' * 100_000),
        *(
            text('{"error": {"code": -32005, "message": %s}}' % ("[" * n + "]" * n))
            for n in (500, 900, 970)
        ),
    ],
)
async def test_passing_faults_are_retried(fault: Answer) -> None:
    node = Node()
    node.script = [fault] * 6
    async with serving(node) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7
    assert node.count("getSlot") == 7


@pytest.mark.parametrize("code", [-32602, -32600, -32601, -32700])
async def test_malformed_requests_are_not_retried(code: int) -> None:
    node = Node()
    node.script = [error(code)]
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(RpcRejected, match=str(code)):
            await pool.call(get_slot)
    assert node.count("getSlot") == 1


@pytest.mark.parametrize("code", [-32602, -32600, -32601, -32700])
async def test_malformed_error_of_known_request_is_retried(code: int) -> None:
    """A gateway sends it for an exhausted quota, or after it truncated the request. Both are
    temporary.
    """
    node = Node()
    async with serving(node) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7
        node.script = [error(code)] * 2
        assert await pool.call(get_slot) == 7
        node.script = [error(code)] * 1000
        with pytest.raises(Unavailable, match=f"no .RPC error {code}"):
            await pool.call(get_slot)


async def test_request_malformed_for_one_node_may_pass_at_next() -> None:
    """Some providers do not support every method."""
    primary = Node()
    fallback = Node()
    primary.script = [error(-32601)] * 9
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        for _ in range(3):
            assert await pool.call(get_slot) == 7
    assert (primary.count("getSlot"), fallback.count("getSlot")) == (2, 3)


async def test_request_malformed_for_all_nodes_is_abandoned() -> None:
    nodes = [Node(), Node()]
    for node in nodes:
        node.script = [error(-32601)] * 9
    async with serving(*nodes) as where, RpcPool(where) as pool:
        with pytest.raises(RpcRejected, match="-32601"):
            await pool.call(get_slot)
    assert [node.count("getSlot") for node in nodes] == [2, 1]


@pytest.mark.parametrize("code", [-32000, -32050, -31999, 1])
async def test_node_with_only_its_own_errors_is_unreachable(
    code: int,
) -> None:
    node = Node()
    node.script = [error(code)] * 1000
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(Unavailable, match=f"no .RPC error {code}"):
            await pool.call(get_slot)
    assert 2 <= node.count("getSlot") < 100, "it was asked again, with growing pauses"


async def test_refused_transaction_is_not_retried_and_keeps_logs() -> None:
    node = Node()
    err = {"InstructionError": [2, {"Custom": 6007}]}
    node.script = [error(-32002, {"err": err, "logs": ["one"]})]
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(TransactionFailed) as caught:
            await pool.call(lambda node: node.send_raw_transaction(b"one"))
    assert (caught.value.custom, caught.value.instruction, caught.value.logs) == (
        6007,
        (2, {"Custom": 6007}),
        ("one",),
    )


async def test_transaction_error_for_read_blames_node() -> None:
    """Such an error once ended members, because no read expects it."""
    liar = Node()
    honest = Node()
    async with serving(liar, honest) as where, RpcPool(where) as pool:
        liar.script = [error(-32002, {"err": "AccountInUse"})] * 9
        assert await pool.call(get_slot) == 7
        assert honest.count("getSlot") == 1


async def test_malformed_result_is_node_failure() -> None:
    liar = Node()
    honest = Node()
    async with serving(liar, honest) as where, RpcPool(where) as pool:
        liar.script = [result("seven")] * 9
        assert await pool.call(get_slot) == 7
        assert honest.count("getSlot") == 1


async def test_dead_primary_is_left_and_later_reused() -> None:
    primary = Node()
    fallback = Node()
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7
        primary.always = status(503)
        assert await pool.call(get_slot) == 7
        tried = len(primary.methods)
        for _ in range(3):
            await pool.call(get_slot)
        assert len(primary.methods) == tried
        assert fallback.count("getSlot") == 4
        primary.always = None
        answered = primary.count("getSlot")
        async with asyncio.timeout(60):
            while primary.count("getSlot") == answered:
                await pool.call(get_slot)
                await asyncio.sleep(0.5)


async def test_outage_and_its_end_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node()
    async with serving(node) as where, RpcPool(where, attempt=1.0) as pool:
        for count in (1, 0):  # the second outage within seconds is not logged
            caplog.clear()
            node.script = [hang] * 5
            assert await pool.call(get_slot) == 7
            assert caplog.text.count("does not answer") == count
            assert caplog.text.count("answers again") == count


async def test_slow_first_answer_logs_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node()
    node.always = hang
    async with serving(node) as where, RpcPool(where, attempt=30) as pool:
        calls = [asyncio.create_task(pool.patient(60).call(get_slot)) for _ in range(2)]
        while not caplog.messages:
            await asyncio.sleep(0.1)
        for task in calls:
            task.cancel()
        assert caplog.messages == [f"waiting for RPC endpoint {node.url}"], (
            "before any try has failed"
        )
        node.always = None
        await pool.call(get_slot)
        caplog.clear()
        node.always = hang
        with pytest.raises(Unavailable):
            await pool.call(get_slot, patience=rpc.REPORT_AFTER + 1)
        assert not any("waiting for" in message for message in caplog.messages), (
            "that is of a start alone"
        )


async def test_hanging_node_costs_one_attempt_not_the_call() -> None:
    primary = Node()
    fallback = Node()
    async with serving(primary, fallback) as where, RpcPool(where, attempt=2.0) as pool:
        primary.always = hang
        now = asyncio.get_running_loop().time
        started = now()
        assert await pool.call(get_slot) == 7
        assert now() - started < 2 * 2.0 + 1


async def test_first_call_past_two_hanging_nodes_reaches_third() -> None:
    """Two of three nodes once hung and used up the first call's patience, so no call reached the
    third node.
    """

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    honest = Node()
    hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
    away = endpoint(f"http://127.0.0.1:{hole.sockets[0].getsockname()[1]}")
    async with hole, serving(honest) as where, RpcPool([away, away, *where]) as pool:
        assert await pool.genesis() == honest.genesis


async def test_hanging_node_is_left_within_patience_of_call() -> None:
    primary = Node()
    fallback = Node()
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        primary.always = hang
        assert await pool.call(get_slot, patience=10.0) == 7


async def test_patient_view_shares_nodes_but_not_patience() -> None:
    node = Node()
    async with serving(node) as where, RpcPool(where, patience=1000) as pool:
        brisk = pool.patient(3.0)
        assert await brisk.call(get_slot) == 7
        assert await pool.call(get_slot) == 7
        assert node.count("getGenesisHash") == 1, "what one view knows of a node, all know"
        node.always = hang
        with pytest.raises(Unavailable, match="for 3 s"):
            await brisk.call(get_slot)
        outage = asyncio.create_task(pool.call(get_slot))
        node.always = status(503)
        await asyncio.sleep(30)
        assert not outage.done(), "the pool itself is as patient as before"
        node.always = None
        assert await asyncio.wait_for(outage, 10) == 7


async def test_unreachable_nodes_error_names_endpoints_and_fix() -> None:
    node = Node()
    async with serving(node) as where:
        pass
    async with RpcPool(
        [endpoint(node.url), endpoint("http://127.0.0.1:9/secret?api-key=abc")]
    ) as pool:
        with pytest.raises(Unavailable) as caught:
            await pool.call(get_slot)
    message = str(caught.value)
    assert node.url in message
    assert "http://127.0.0.1:9 (cannot connect)" in message
    assert "aftermath-solana localnet" in message
    assert "secret" not in message
    assert "abc" not in message
    assert where


async def test_fallback_of_another_cluster_is_refused() -> None:
    primary = Node(cluster("one"))
    fallback = Node(cluster("two"))
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        with pytest.raises(WrongCluster, match="another cluster"):
            await pool.check()
        assert await pool.call(get_slot) == 7
        primary.always = status(503)
        with pytest.raises(Unavailable, match="another cluster"):
            await pool.call(get_slot, patience=10.0)
        assert fallback.count("getSlot") == 0


async def test_node_with_changed_cluster_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes, "LEAVE_SECONDS", 0.0)
    primary = Node(cluster("one"))
    fallback = Node(cluster("one"))
    async with serving(primary, fallback) as where, RpcPool(where) as pool:
        await pool.call(get_slot)
        primary.script = [status(503)] * nodes.FAILURES_BEFORE_LEAVING
        primary.genesis = cluster("two")
        for _ in range(3):
            assert await pool.call(get_slot) == 7
        assert primary.count("getGenesisHash") > 1


async def test_network_restarted_at_same_address_is_detected() -> None:
    node = Node(cluster("one"))
    async with serving(node) as where, RpcPool(where) as pool:
        await pool.call(get_slot)
        node.script = [status(503)] * nodes.FAILURES_BEFORE_LEAVING
        node.genesis = cluster("two")
        with pytest.raises(WrongCluster, match="without --ledger"):
            await pool.call(get_slot)


async def test_replies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "MAX_REPLY", 1000)
    node = Node()
    node.script = [text(json.dumps({"result": "x" * 2000}))] * 1000
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(Unavailable, match="more than 1000 bytes"):
            await pool.call(get_slot)


async def test_replies_have_few_values() -> None:
    """Parsing a million numbers, which are some kilobytes on the wire, would block a member for ten
    seconds.
    """
    fat = Node()
    honest = Node()
    numbers = [1e300] * node_client.MOST_VALUES
    fat.always = text(json.dumps({"jsonrpc": "2.0", "result": 6, "pad": numbers}))
    async with serving(fat, honest) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7


async def test_backoff_with_same_seed_repeats() -> None:
    where = [endpoint("http://127.0.0.1:9")]
    waits = [
        [pool.backoff(n) for n in range(1, 9)]
        for pool in (RpcPool(where, seed=3), RpcPool(where, seed=3))
    ]
    assert waits[0] == waits[1]
    assert all(w <= rpc.BACKOFF_MAX for w in waits[0])


async def test_genesis_is_requested_once_for_many_calls() -> None:
    node = Node()
    async with serving(node) as where, RpcPool(where) as pool:
        await asyncio.gather(*(pool.call(get_slot) for _ in range(20)))
        assert await pool.genesis() == cluster("the one")
    assert node.count("getGenesisHash") == 2


@pytest.mark.parametrize(
    ("genesis", "expected"),
    [
        (cluster("a test network"), True),
        ("5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d", False),
        ("4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY", False),
        ("EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG", False),
    ],
    ids=["test network", "mainnet", "testnet", "devnet"],
)
async def test_local_network_on_loopback_follows_genesis_hash(genesis: str, expected: bool) -> None:
    async with serving(Node(genesis)) as where, RpcPool(where) as pool:
        assert not pool.is_local  # not known yet
        await pool.call(get_slot)
        assert pool.is_local is expected
        assert pool.patient(1.0).is_local is expected


async def test_local_network_without_genesis_hash_is_not_local() -> None:
    async with serving(Node("not a hash")) as where, RpcPool(where, patience=0.3) as pool:
        with pytest.raises(Unavailable):
            await pool.genesis()
        assert not pool.is_local


@pytest.mark.parametrize(
    ("http", "ws"),
    [
        ("http://127.0.0.1:8899", "ws://127.0.0.1:8900"),
        ("https://api.devnet.solana.com", "wss://api.devnet.solana.com"),
        ("https://host/path?key=1", "wss://host/path?key=1"),
        ("http://[::1]:8899", "ws://[::1]:8900"),
    ],
)
def test_websocket_address_follows_from_http_address(http: str, ws: str) -> None:
    assert endpoint(http) == Endpoint(http, ws)
    assert endpoint(http, "ws://other:1") == Endpoint(http, "ws://other:1")


def test_well_known_cluster_has_name() -> None:
    assert endpoint("localnet") == endpoint(defaults.RPC)
    assert endpoint("localnet").is_loopback
    assert endpoint("devnet") == Endpoint(
        "https://api.devnet.solana.com", "wss://api.devnet.solana.com"
    )
    assert all(endpoint(name).http == address for name, address in CLUSTERS.items())
    with pytest.raises(UsageError) as refused:
        endpoint("Devnet")
    assert (
        refused.value.fix
        == f"Use an address like http://host:port, or one of {', '.join(CLUSTERS)}"
    )
    with pytest.raises(UsageError) as refused:
        endpoint("devnet", "devnet")
    assert refused.value.fix == "Use an address like ws://host:port"


@pytest.mark.parametrize(
    "bad",
    ["", "localhost:8899", "ftp://x", "http://", "http://x:99999", "http://x:0", "http://[::1"],
)
def test_invalid_rpc_addresses_are_refused(bad: str) -> None:
    with pytest.raises(UsageError, match="not an RPC address"):
        endpoint(bad)


def test_loopback_is_recognised() -> None:
    assert endpoint("http://127.0.0.1:8899").is_loopback
    assert endpoint("http://localhost:8899").is_loopback
    assert endpoint("http://[::1]:8899").is_loopback
    assert not endpoint("http://192.168.0.4:8899").is_loopback
    assert not endpoint("http://127.0.0.1.example.com").is_loopback
    assert shown("https://user:pw@host:1/p?k=2") == "https://host:1"


def test_too_many_endpoints_are_refused() -> None:
    with pytest.raises(CoordinatorError, match="up to 2 fallbacks"):
        RpcPool([endpoint("http://127.0.0.1:8899")] * 4)


async def test_cookies_of_node_do_not_accumulate() -> None:
    """Otherwise all would be kept and checked before every request."""
    numbers = itertools.count()

    def answer(request: httpx.Request) -> httpx.Response:
        cookies = [("Set-Cookie", f"c{next(numbers)}=x") for _ in range(20)]
        return httpx.Response(
            200, headers=cookies, json={"id": json.loads(request.content)["id"], "result": 7}
        )

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as session:
        node = NodeClient("http://node.example", session, set())
        for _ in range(5):
            await get_slot(node)
        assert len(session.cookies.jar) == 20
