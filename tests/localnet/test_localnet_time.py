"""Test slots, ages of blockhashes and sysvars under a virtual clock, without any real waiting."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.core import RPCException
from solders.hash import Hash
from solders.keypair import Keypair
from solders.sysvar import CLOCK, SLOT_HASHES

from aftermath.localnet import LocalnetConfig, RunningLocalnet, VirtualTime, serve
from localnet.localnet_requests import SOL, fund, move, recent, rpc, sign, transfer_new

START = 1_700_000_000.0


@pytest.fixture
async def chain() -> AsyncIterator[tuple[RunningLocalnet, VirtualTime, AsyncClient]]:
    time = VirtualTime(START)
    running = await serve(LocalnetConfig(rpc_port=0, time=time))
    async with AsyncClient(running.rpc_url) as client:
        yield running, time, client
    await running.close()


Chain = tuple[RunningLocalnet, VirtualTime, AsyncClient]


async def test_time_stands_still_unless_moved(chain: Chain) -> None:
    _, time, client = chain
    assert (await client.get_slot()).value == 1
    assert (await client.get_slot()).value == 1
    time.advance(0.399)
    assert (await client.get_slot()).value == 1
    time.advance(0.001)
    assert (await client.get_slot()).value == 2
    time.advance(3600)
    assert (await client.get_slot()).value == 2 + 9000
    with pytest.raises(ValueError, match="back"):
        time.advance(-1)


async def test_clock_sysvar_follows_virtual_time(chain: Chain) -> None:
    _, time, client = chain
    time.advance(100)
    account = (await client.get_account_info(CLOCK)).value
    assert account is not None
    assert struct.unpack("<QqQQq", account.data) == (251, int(START), 0, 1, int(START) + 100)
    assert (await client.get_block_time(1)).value == int(START)
    assert (await client.get_block_time(251)).value == int(START) + 100
    time.advance(432_000 * 0.4)
    account = (await client.get_account_info(CLOCK)).value
    assert account is not None
    assert struct.unpack("<QqQQq", account.data)[2:4] == (1, 2)


async def test_slot_hashes_equal_blockhashes(chain: Chain) -> None:
    _, time, client = chain
    known: dict[int, Hash] = {}
    for _ in range(5):
        slot = (await client.get_slot()).value
        known[slot - 1] = await recent(client)
        time.advance(0.4)
    time.advance(600 * 0.4)
    account = (await client.get_account_info(SLOT_HASHES)).value
    assert account is not None
    assert struct.unpack_from("<Q", account.data) == (512,)
    slot = (await client.get_slot()).value
    entries = [struct.unpack_from("<Q32s", account.data, 8 + 40 * i) for i in range(512)]
    assert [number for number, _ in entries] == list(range(slot - 1, slot - 513, -1))
    assert entries[0][1] == bytes(await recent(client))
    assert len({value for _, value in entries}) == 512
    assert len(set(known.values())) == 5


async def test_blockhash_expires_after_150_slots(chain: Chain) -> None:
    running, time, client = chain
    payer = Keypair()
    await fund(client, payer.pubkey())
    latest = (await client.get_latest_blockhash()).value
    first = sign([move(payer, Keypair().pubkey(), SOL)], latest.blockhash, payer)
    second = sign([move(payer, Keypair().pubkey(), SOL)], latest.blockhash, payer)
    time.advance(150 * 0.4)
    assert (await client.get_block_height()).value == latest.last_valid_block_height + 1
    assert (await rpc(running.rpc_url, "isBlockhashValid", str(latest.blockhash)))["result"][
        "value"
    ] is True
    await client.send_transaction(first)
    time.advance(0.4)
    assert (await rpc(running.rpc_url, "isBlockhashValid", str(latest.blockhash)))["result"][
        "value"
    ] is False
    with pytest.raises(RPCException, match="Blockhash not found"):
        await client.send_transaction(second)
    with pytest.raises(RPCException, match="Blockhash not found"):
        await client.send_transaction(first)


async def test_duplicate_is_known_as_long_as_its_blockhash(chain: Chain) -> None:
    _, time, client = chain
    payer = Keypair()
    await fund(client, payer.pubkey())
    tx = sign([move(payer, Keypair().pubkey(), SOL)], await recent(client), payer)
    await client.send_transaction(tx)
    for _ in range(15):
        with pytest.raises(RPCException, match="already been processed"):
            await client.send_transaction(tx)
        time.advance(10 * 0.4)


async def test_old_recent_fees_are_forgotten(chain: Chain) -> None:
    running, time, client = chain
    payer = Keypair()
    await fund(client, payer.pubkey())
    await transfer_new(client, payer)
    time.advance(0.4)
    listed = (await rpc(running.rpc_url, "getRecentPrioritizationFees"))["result"]
    assert listed == [{"slot": 1, "prioritizationFee": 0}]
    time.advance(1000)
    assert len((await rpc(running.rpc_url, "getRecentPrioritizationFees"))["result"]) == 150
