"""Test every subscription with solana-py's websocket client, on both engines and ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.types import MemcmpOpts
from solana.rpc.websocket_api import SolanaWsClientProtocol, connect
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.rpc.config import RpcTransactionLogsFilter, RpcTransactionLogsFilterMentions
from solders.rpc.responses import SubscriptionResult

from localnet.localnet_processes import Urls
from localnet.localnet_requests import (
    LOADER_ID,
    OPTIONS,
    PRELOADED_ID,
    SOL,
    UNCHECKED,
    memo,
    move,
    recent,
    send,
    sign,
    transfer_new,
    write_buffer,
)

PATIENCE = 30.0


@pytest_asyncio.fixture(loop_scope="module")
async def socket(network: Urls) -> AsyncIterator[SolanaWsClientProtocol]:
    async with connect(network.ws_url) as open_socket:
        yield open_socket


async def received(socket: SolanaWsClientProtocol) -> list[Any]:
    return await asyncio.wait_for(socket.recv(), PATIENCE)


async def opened(socket: SolanaWsClientProtocol) -> int:
    """Return the number of the new subscription. Skip notifications that come before it."""
    while not isinstance(answer := (await received(socket))[0], SubscriptionResult):
        pass
    return answer.result


async def test_slot_notifications_rise(socket: SolanaWsClientProtocol) -> None:
    await socket.slot_subscribe()
    number = await opened(socket)
    slots = []
    for _ in range(3):
        (note,) = await received(socket)
        assert note.subscription == number
        assert note.result.parent < note.result.slot
        slots.append(note.result.slot)
    assert slots == sorted(set(slots))
    await socket.slot_unsubscribe(number)
    while not isinstance(
        (answer := (await received(socket))[0]), SubscriptionResult
    ) and not isinstance(answer.result, bool):
        pass


@pytest.mark.parametrize("encoding", ["base64", "base64+zstd"])
async def test_account_changes_are_notified_until_unsubscribed(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair, encoding: str
) -> None:
    to = Keypair().pubkey()
    await socket.account_subscribe(to, Confirmed, encoding)
    number = await opened(socket)
    _, _, first = await transfer_new(client, payer, to)
    _, _, second = await transfer_new(client, payer, to)
    (one,) = await received(socket)
    (two,) = await received(socket)
    assert (one.subscription, one.result.value.lamports) == (number, first)
    assert two.result.value.lamports == first + second
    assert two.result.context.slot >= one.result.context.slot
    await socket.account_unsubscribe(number)
    await received(socket)
    await transfer_new(client, payer, to)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(socket.recv(), 1.0)


async def test_account_data_arrives_whole(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair
) -> None:
    await socket.program_subscribe(LOADER_ID, Confirmed, "base64+zstd")
    await opened(socket)
    buffer = await write_buffer(client, payer, bytes(range(256)))
    while True:
        (note,) = await received(socket)
        if note.result.value.pubkey == buffer and note.result.value.account.data[37:] == bytes(
            range(256)
        ):
            return


async def test_program_subscription_notifies_matching_accounts(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair
) -> None:
    mark = bytes(Keypair().pubkey())
    where = [MemcmpOpts(offset=37, bytes=str(Pubkey(mark))), 37 + 32]
    await socket.program_subscribe(LOADER_ID, Confirmed, "base64", filters=where)
    await opened(socket)
    await write_buffer(client, payer, bytes(32))
    buffer = await write_buffer(client, payer, mark)
    (note,) = await received(socket)
    assert note.result.value.pubkey == buffer


async def test_signature_is_notified_before_and_after_landing(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([move(payer, Keypair().pubkey(), SOL)], await recent(client), payer)
    await socket.signature_subscribe(tx.signatures[0], Confirmed)
    await opened(socket)
    await client.send_transaction(tx, OPTIONS)
    (note,) = await received(socket)
    assert note.result.value.err is None
    await client.confirm_transaction(tx.signatures[0], Confirmed, sleep_seconds=0.1)
    await socket.signature_subscribe(tx.signatures[0], Confirmed)
    await opened(socket)
    (again,) = await received(socket)
    assert again.result.value.err is None


async def test_failed_signature_is_notified(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([memo(PRELOADED_ID, b"\xff")], await recent(client), payer)
    await socket.signature_subscribe(tx.signatures[0], Confirmed)
    await opened(socket)
    await client.send_transaction(tx, UNCHECKED)
    (note,) = await received(socket)
    assert "InvalidInstructionData" in str(note.result.value.err)


async def test_log_subscription_filters_by_mentioned_key(
    socket: SolanaWsClientProtocol, client: AsyncClient, payer: Keypair
) -> None:
    await socket.logs_subscribe(RpcTransactionLogsFilterMentions(payer.pubkey()), Confirmed)
    await opened(socket)
    signature = await send(client, [memo(PRELOADED_ID, b"mentioned")], payer)
    (note,) = await received(socket)
    assert note.result.value.signature == signature
    assert any("mentioned" in line for line in note.result.value.logs)
    # The validator may also notify this subscription of the first memo, whose slot is still new.
    await socket.logs_subscribe(RpcTransactionLogsFilter.All, Confirmed)
    await opened(socket)
    signature = await send(client, [memo(PRELOADED_ID, b"everyone")], payer)
    notified: set[int] = set()
    while len(notified) < 2:
        (note,) = await received(socket)
        if note.result.value.signature == signature:
            notified.add(note.subscription)


async def test_invalid_websocket_messages_get_errors(network: Urls) -> None:
    calls = [
        ("accountUnsubscribe", [123_456]),
        ("accountSubscribe", ["xx"]),
        ("noSuchSubscribe", []),
        ("getSlot", []),
    ]
    async with aiohttp.ClientSession() as session, session.ws_connect(network.ws_url) as socket:
        for number, (method, params) in enumerate(calls):
            await socket.send_json(
                {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            )
        answers = {
            one["id"]: one["error"]["code"] for one in [await socket.receive_json() for _ in calls]
        }
        assert answers == {0: -32602, 1: -32602, 2: -32601, 3: -32601}
        await socket.send_str("{")
        assert (await socket.receive_json())["error"]["code"] == -32700
