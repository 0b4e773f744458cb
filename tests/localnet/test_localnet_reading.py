"""Test every reading method on both engines, through solana-py and as raw JSON-RPC."""

from __future__ import annotations

import base64
import struct

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.types import DataSliceOpts, MemcmpOpts
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rpc.requests import GetBlockHeight, GetSlot
from solders.rpc.responses import GetBlockHeightResp, GetSlotResp
from solders.sysvar import CLOCK, RENT, SLOT_HASHES

from localnet.localnet_processes import Urls
from localnet.localnet_requests import (
    LOADER_ID,
    PRELOADED_ID,
    SOL,
    fund,
    history,
    landed,
    memo,
    move,
    post,
    recent,
    rpc,
    send,
    sign,
    transfer_new,
    until_slot,
    write_buffer,
)


async def test_chain_info_methods_answer(client: AsyncClient, network: Urls) -> None:
    assert await client.is_connected()
    assert (await rpc(network.rpc_url, "getHealth"))["result"] == "ok"
    assert (await client.get_version()).value.solana_core
    genesis = (await client.get_genesis_hash()).value
    assert genesis != Hash.default()
    slot = (await client.get_slot()).value
    epoch = (await client.get_epoch_info()).value
    assert epoch.slots_in_epoch == 432_000
    assert epoch.absolute_slot >= slot
    assert (await client.get_block_height()).value <= (await client.get_slot()).value
    assert (await client.get_transaction_count()).value >= 0


async def test_idle_slots_pass_and_clock_follows(client: AsyncClient) -> None:
    first = (await client.get_slot()).value
    await until_slot(client, first + 3)
    account = (await client.get_account_info(CLOCK)).value
    assert account is not None
    slot, _, epoch, _, unix_time = struct.unpack("<QqQQq", account.data)
    assert slot >= first
    assert epoch == 0
    block_time = (await client.get_block_time(first)).value
    assert block_time is not None
    assert abs(unix_time - block_time) < 60


async def test_slot_hashes_name_finished_slots(client: AsyncClient) -> None:
    await until_slot(client, 1)  # a validator has none before its first slot is over
    account = (await client.get_account_info(SLOT_HASHES)).value
    assert account is not None
    assert len(account.data) == 20_488
    count, newest = struct.unpack_from("<QQ", account.data)
    assert 1 <= count <= 512
    assert newest < (await client.get_slot("processed")).value + 1
    assert (await client.get_account_info(RENT)).value is not None


async def test_blockhash_lasts_150_blocks(client: AsyncClient) -> None:
    latest = (await client.get_latest_blockhash()).value
    assert (
        (await client.is_blockhash_valid(latest.blockhash, Confirmed)).value
        if hasattr(client, "is_blockhash_valid")
        else True
    )
    height = (await client.get_block_height()).value
    assert 0 < latest.last_valid_block_height - height <= 151


async def test_blockhash_validity_is_true_only_for_recent_one(
    network: Urls, client: AsyncClient
) -> None:
    known = str(await recent(client))
    confirmed = {"commitment": "confirmed"}
    assert (await rpc(network.rpc_url, "isBlockhashValid", known, confirmed))["result"][
        "value"
    ] is True
    assert (await rpc(network.rpc_url, "isBlockhashValid", str(Hash.new_unique()), confirmed))[
        "result"
    ]["value"] is False
    assert (await rpc(network.rpc_url, "isBlockhashValid", "nonsense"))["error"]["code"] == -32602


async def test_rent_minimum_equals_validator(client: AsyncClient) -> None:
    for size, lamports in ((0, 890_880), (100, 1_586_880), (10_240, 72_161_280)):
        assert (await client.get_minimum_balance_for_rent_exemption(size)).value == lamports


async def test_airdrop_and_balance(client: AsyncClient) -> None:
    key = Keypair().pubkey()
    assert (await client.get_balance(key)).value == 0
    assert (await client.get_account_info(key)).value is None
    await fund(client, key, 3 * SOL)
    assert (await client.get_balance(key)).value == 3 * SOL
    account = (await client.get_account_info(key)).value
    assert account is not None
    assert (account.lamports, account.data, account.executable) == (3 * SOL, b"", False)


async def test_preloaded_program_account_is_executable(client: AsyncClient) -> None:
    account = (await client.get_account_info(PRELOADED_ID)).value
    assert account is not None
    assert account.executable
    assert account.owner == LOADER_ID


@pytest.mark.parametrize("encoding", ["base58", "base64", "base64+zstd", "jsonParsed"])
async def test_account_data_is_served_in_every_encoding(
    client: AsyncClient, payer: Keypair, encoding: str
) -> None:
    buffer = await write_buffer(client, payer, bytes(range(60)))
    if encoding == "jsonParsed":
        # the loader's buffers have a parser on a validator; other programs' accounts have none
        encoding = "base64"
    account = (await client.get_account_info(buffer, encoding=encoding)).value
    assert account is not None
    assert account.data[37:] == bytes(range(60))


async def test_base58_of_large_data_is_refused(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    buffer = await write_buffer(client, payer, bytes(200))
    confirmed = {"commitment": "confirmed"}
    for encoding in ({"encoding": "base58"}, {}):
        answer = await rpc(
            network.rpc_url, "getAccountInfo", str(buffer), {**confirmed, **encoding}
        )
        assert answer["error"]["code"] == -32600
        assert "128 bytes" in answer["error"]["message"]


async def test_account_slices_and_lists_are_returned(client: AsyncClient, payer: Keypair) -> None:
    buffer = await write_buffer(client, payer, b"abcdefgh")
    account = (
        await client.get_account_info(buffer, data_slice=DataSliceOpts(offset=37 + 2, length=3))
    ).value
    assert account is not None
    assert account.data == b"cde"
    accounts = (
        await client.get_multiple_accounts([buffer, Keypair().pubkey(), payer.pubkey()])
    ).value
    assert accounts[0] is not None
    assert accounts[0].data[37:] == b"abcdefgh"
    assert accounts[1] is None
    assert accounts[2] is not None


async def test_program_accounts_by_filter(client: AsyncClient, payer: Keypair) -> None:
    mark = bytes(Keypair().pubkey())
    short = await write_buffer(client, payer, mark)
    long = await write_buffer(client, payer, mark + b"!")
    other = MemcmpOpts(offset=37, bytes=str(Keypair().pubkey()))
    assert (await client.get_program_accounts(LOADER_ID, filters=[other])).value == []
    where = MemcmpOpts(offset=37, bytes=str(Pubkey(mark)))
    both = (await client.get_program_accounts(LOADER_ID, encoding="base64", filters=[where])).value
    assert {one.pubkey for one in both} == {short, long}
    one = (
        await client.get_program_accounts(LOADER_ID, encoding="base64", filters=[where, 37 + 33])
    ).value
    assert [(o.pubkey, o.account.data[37:]) for o in one] == [(long, mark + b"!")]


async def test_account_history_lists_signatures(client: AsyncClient, payer: Keypair) -> None:
    to = Keypair().pubkey()
    signatures = [(await transfer_new(client, payer, to))[0] for _ in range(3)]
    listed = await history(client, to, len(signatures))
    assert {one.signature for one in listed} == set(signatures)
    assert [one.slot for one in listed] == sorted((one.slot for one in listed), reverse=True)
    newest = (await client.get_signatures_for_address(to, limit=1)).value
    older = (await client.get_signatures_for_address(to, before=newest[0].signature)).value
    assert [one.signature for one in [*newest, *older]] == [one.signature for one in listed]
    until = (await client.get_signatures_for_address(to, until=listed[-1].signature)).value
    assert [one.signature for one in until] == [one.signature for one in listed[:-1]]


async def test_statuses_of_known_and_unknown_signatures(
    client: AsyncClient, payer: Keypair
) -> None:
    signature, _, _ = await transfer_new(client, payer)
    unknown = payer.sign_message(b"never sent")
    known, missing = (await client.get_signature_statuses([signature, unknown])).value
    assert missing is None
    assert known is not None
    assert known.err is None
    assert known.slot > 0


async def test_fee_of_message_equals_charged_fee(
    client: AsyncClient, payer: Keypair, network: Urls
) -> None:
    blockhash = await recent(client)
    plain = Message.new_with_blockhash([memo(PRELOADED_ID, b"x")], payer.pubkey(), blockhash)
    assert (await client.get_fee_for_message(plain)).value == 5000
    # 2,000 micro-lamports x 300,001 units = 600.002 lamports, rounded up
    to = Keypair().pubkey()
    priced = [set_compute_unit_limit(300_001), set_compute_unit_price(2_000), move(payer, to, SOL)]
    message = Message.new_with_blockhash(priced, payer.pubkey(), blockhash)
    assert (await client.get_fee_for_message(message)).value == 5601
    stale = Message.new_with_blockhash(
        [memo(PRELOADED_ID, b"x")], payer.pubkey(), Hash.new_unique()
    )
    assert (await client.get_fee_for_message(stale)).value is None
    before = (await client.get_balance(payer.pubkey())).value
    await send(client, priced, payer)
    assert before - (await client.get_balance(payer.pubkey())).value == SOL + 5601
    prices: set[int] = set()
    while 2_000 not in prices:  # listed once its slot has ended
        listed = (await rpc(network.rpc_url, "getRecentPrioritizationFees", [str(to)]))["result"]
        prices = {one["prioritizationFee"] for one in listed}
    assert prices <= {0, 2_000}


async def test_min_context_slot_beyond_chain_is_an_error(network: Urls) -> None:
    far = {"minContextSlot": 10**12, "commitment": "confirmed"}
    key = str(Keypair().pubkey())
    for method, *params in (
        ("getSlot",),
        ("getBalance", key),
        ("getAccountInfo", key),
        ("getLatestBlockhash",),
    ):
        error = (await rpc(network.rpc_url, method, *params, far))["error"]
        assert error["code"] == -32016
        assert error["message"] == "Minimum context slot has not been reached"
        assert error["data"]["contextSlot"] >= 0
    near = {"minContextSlot": 0, "commitment": "confirmed"}
    assert (await rpc(network.rpc_url, "getBalance", key, near))["result"]["value"] == 0


async def test_wrong_calls_get_json_rpc_errors(network: Urls) -> None:
    key = str(PRELOADED_ID)
    for method, params, code in (
        ("noSuchMethod", [], -32601),
        ("getAccountInfo", [], -32602),
        ("getAccountInfo", ["not a key"], -32602),
        ("getAccountInfo", [key, 5], -32602),
        ("getAccountInfo", [key, {"encoding": "nonsense"}], -32602),
        ("getAccountInfo", [key, {"dataSlice": 5}], -32602),
        ("getMultipleAccounts", ["x"], -32602),
        ("getSignatureStatuses", [5], -32602),
        ("getSignatureStatuses", [["x"]], -32602),
        ("sendTransaction", [5], -32602),
        ("getBalance", [5], -32602),
        ("getSlot", {"commitment": "confirmed"}, -32602),
        ("getMultipleAccounts", [["x"]], -32602),
        ("getSignaturesForAddress", [key, {"limit": 5000}], -32602),
        ("sendTransaction", ["!!!", {"encoding": "base64"}], -32602),
        ("sendTransaction", ["AAAA", {"encoding": "base64"}], -32602),
        (
            "sendTransaction",
            [base64.b64encode(bytes(2000)).decode(), {"encoding": "base64"}],
            -32602,
        ),
        ("getFeeForMessage", ["AAAA"], -32602),
    ):
        answer = await post(
            network.rpc_url, {"jsonrpc": "2.0", "id": 3, "method": method, "params": params}
        )
        assert answer["error"]["code"] == code, (method, params, answer)
        assert answer["id"] == 3


async def test_batch_gets_answer_per_request(network: Urls, client: AsyncClient) -> None:
    calls = [
        {"jsonrpc": "2.0", "id": i, "method": method}
        for i, method in enumerate(("getSlot", "nope", "getHealth"))
    ]
    answers = {one["id"]: one for one in await post(network.rpc_url, calls)}
    assert answers[0]["result"] >= 0
    assert answers[1]["error"]["code"] == -32601
    assert answers[2]["result"] == "ok"

    slot, height = await client._provider.make_batch_request(
        (GetSlot(), GetBlockHeight()), (GetSlotResp, GetBlockHeightResp)
    )
    assert isinstance(slot, GetSlotResp)
    assert isinstance(height, GetBlockHeightResp)


async def test_landed_transaction_is_returned_in_every_encoding(
    client: AsyncClient, payer: Keypair, network: Urls
) -> None:
    to = Keypair().pubkey()
    tx = sign([move(payer, to, SOL)], await recent(client), payer)
    signature = (await client.send_transaction(tx)).value
    await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)
    for encoding in ("json", "base64"):
        transaction = await landed(client, signature, encoding)
        meta = transaction.transaction.meta
        assert meta is not None
        assert (meta.err, meta.fee, meta.compute_units_consumed) == (None, 5000, 150)
        assert [a - b for a, b in zip(meta.post_balances, meta.pre_balances, strict=True)] == [
            -SOL - 5000,
            SOL,
            0,
        ]
        assert meta.log_messages is not None
        assert meta.log_messages[-1] == "Program 11111111111111111111111111111111 success"
    raw = await rpc(
        network.rpc_url,
        "getTransaction",
        str(signature),
        {"encoding": "base64", "commitment": "confirmed"},
    )
    assert raw["result"]["transaction"] == [base64.b64encode(bytes(tx)).decode(), "base64"]
    assert (
        await client.get_transaction(payer.sign_message(b"unknown"), commitment=Confirmed)
    ).value is None
