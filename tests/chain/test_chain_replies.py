"""Tests that a reply of an RPC node is accepted only if it answers our request and can be read, and
a genesis only if it is a hash.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest
import zstandard
from aiohttp import web
from solders.hash import Hash
from solders.keypair import Keypair
from solders.system_program import TransferParams, transfer

from aftermath.chain import node_client, nodes
from aftermath.chain.failures import PREFLIGHT_FAILURE, RpcError, TransactionFailed, raise_error
from aftermath.chain.node_client import NodeClient
from aftermath.chain.refusals import refused
from aftermath.chain.rpc import RpcPool
from aftermath.coordinator.errors import Unavailable
from chain.faults import answer
from chain.scripted_node import Node, get_slot, result, serving, status, text

UNFUNDED = {"err": "AccountNotFound", "logs": None}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": PREFLIGHT_FAILURE, "message": "m", "data": UNFUNDED}, TransactionFailed),
        ({"code": PREFLIGHT_FAILURE, "message": "m"}, RpcError),
        ({"code": PREFLIGHT_FAILURE, "message": "m", "data": {"err": None}}, RpcError),
        ({"code": -32005, "message": "m", "data": UNFUNDED}, RpcError),
        ("m", RpcError),
    ],
)
def test_reply_error_raises_transaction_failed_or_rpc_error(
    error: object, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        raise_error(error, "SimulateVersionedTransaction")
    assert type(caught.value) is kind


NO_HASH = [None, 7, "", "cluster-one", "1" * 31, "1" * 65, [str(Hash.default())], "\ud800"]


@pytest.mark.parametrize("nonsense", NO_HASH)
async def test_invalid_genesis_hash_is_requested_again(nonsense: Any) -> None:
    """At the start it would become the cluster's hash. Later it would look like another cluster."""
    node = Node()
    truth = node.genesis
    async with serving(node) as where, RpcPool(where) as pool, asyncio.timeout(60):
        for script in ([], [status(503)] * nodes.FAILURES_BEFORE_LEAVING):
            node.script = script
            node.genesis = nonsense
            before = node.count("getGenesisHash")
            asking = asyncio.create_task(pool.call(get_slot))
            while node.count("getGenesisHash") < before + 2:
                assert not asking.done()
                await asyncio.sleep(0.05)
            node.genesis = truth
            assert await asking == 7


@pytest.mark.parametrize("nonsense", NO_HASH[:3])
async def test_fallback_with_invalid_genesis_is_skipped(nonsense: Any) -> None:
    primary = Node()
    liar = Node(nonsense)
    honest = Node()
    async with serving(primary, liar, honest) as where, RpcPool(where) as pool:
        await pool.check()
        primary.always = status(503)
        assert await pool.call(get_slot) == 7
    assert liar.count("getSlot") == 0
    assert honest.count("getSlot") == 1


@pytest.mark.parametrize("number", [0, -1, 1, 9, "2", 2.5, [2]])
async def test_reply_to_another_request_is_ignored(number: Any) -> None:
    async def stale(_: dict[str, Any]) -> web.Response:
        return web.json_response({"jsonrpc": "2.0", "id": number, "result": 6})

    async def foreign(_: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "not yours"}}
        )

    node = Node()
    async with serving(node) as where, RpcPool(where) as pool:
        node.script = [stale, foreign, text('{"result": 6}')]
        assert await pool.call(get_slot) == 7
    assert node.count("getSlot") == 4


async def test_requests_have_unique_numbers() -> None:
    node = Node()
    numbers = []

    async def note(body: dict[str, Any]) -> web.Response:
        numbers.append(body["id"])
        return answer(body, node.genesis if body["method"] == "getGenesisHash" else 7)

    node.always = note
    async with serving(node) as where, RpcPool(where) as pool:
        await asyncio.gather(*(pool.call(get_slot) for _ in range(20)))
    assert len(set(numbers)) == 21


async def test_error_while_reading_reply_counts_as_node_failure() -> None:
    async def trips(node: NodeClient) -> int:
        return {4: 3}[await get_slot(node)]

    node = Node()
    async with serving(node) as where, RpcPool(where) as pool:
        node.script = [result(value) for value in (None, [], -1, 1 << 64, "x", 5)] + [result(4)]
        assert await pool.call(trips) == 3


@pytest.mark.parametrize(
    "detail", [5, -1, True, None, [], {}, [[1]], {"Custom": "x"}, {"a": 1, "b": 2}, "x" * 10_000]
)
def test_unknown_refusal_has_short_message(detail: Any) -> None:
    key = Keypair.from_seed(bytes(32)).pubkey()
    instruction = transfer(TransferParams(from_pubkey=key, to_pubkey=key, lamports=1))
    for error in ({"InstructionError": [0, detail]}, {"InstructionError": detail}, detail):
        refusal = refused(TransactionFailed(error, ["x" * 10_000]), [instruction], {})
        assert 0 < len(str(refusal)) < 2_000


def packed(body: bytes, encoding: str) -> Any:
    async def reply(_: dict[str, Any]) -> web.Response:
        return web.Response(
            body=body, headers={"Content-Encoding": encoding, "Content-Type": "application/json"}
        )

    return reply


async def test_gzip_reply_is_read() -> None:
    node = Node()

    async def compressed(body: dict[str, Any]) -> web.Response:
        reply = json.dumps({"jsonrpc": "2.0", "id": body["id"], "result": 8}).encode()
        return await packed(gzip.compress(reply), "gzip")(body)  # type: ignore[no-any-return]

    node.script = [compressed]
    async with serving(node) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 8


SPACES = b" " * 200_000
BOMBS = {
    "gzip": (gzip.compress(SPACES), "more than 1000 bytes"),
    "gzip, gzip": (gzip.compress(gzip.compress(SPACES)), "not asked for"),
    "deflate": (zlib.compress(SPACES), "not asked for"),
    "zstd": (zstandard.compress(SPACES), "not asked for"),
    "br": (b"?", "not asked for"),
}


@pytest.mark.parametrize("encoding", BOMBS)
async def test_compressed_reply_is_unpacked_only_up_to_limit(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_client, "MAX_REPLY", 1000)
    sizes: list[int] = []

    def unpacked(*args: Any, whole: Any = node_client._unpacked) -> bytes:
        sizes.append(len(whole(*args)))
        return bytes(sizes[-1])

    monkeypatch.setattr(node_client, "_unpacked", unpacked)
    body, why = BOMBS[encoding]
    node = Node()
    node.always = packed(body, encoding)
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(Unavailable, match=why):
            await pool.call(get_slot)
    assert max(sizes, default=0) <= 1001


@pytest.mark.parametrize(
    "body",
    [b"no gzip", gzip.compress(b'{"result": 1}')[:-9], gzip.compress(b"{}") + b"and more"],
    ids=["none", "cut", "more"],
)
async def test_incomplete_gzip_reply_is_node_failure(body: bytes) -> None:
    broken = Node()
    honest = Node()
    broken.always = packed(body, "gzip")
    async with serving(broken, honest) as where, RpcPool(where) as pool:
        assert await pool.call(get_slot) == 7
