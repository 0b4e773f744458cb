"""Transactions that the localnet tests send, and raw JSON-RPC calls."""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Sequence
from typing import Any

import aiohttp
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.types import TxOpts
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.rpc.responses import RpcConfirmedTransactionStatusWithSignature
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_ID
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from solders.sysvar import CLOCK, RENT
from solders.transaction import VersionedTransaction
from solders.transaction_status import EncodedConfirmedTransactionWithStatusMeta

SOL = 10**9
MEMO_ID = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")
PRELOADED_ID = Pubkey.from_string("Pre1oadedMemo111111111111111111111111111111")
LOADER_ID = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
OPTIONS = TxOpts(preflight_commitment=Confirmed)
UNCHECKED = TxOpts(preflight_commitment=Confirmed, skip_preflight=True)
HISTORY_SECONDS = 60.0
"""A deadline for broken code, not an expectation."""
_amounts = itertools.count(10**6)


async def fund(client: AsyncClient, key: Pubkey, lamports: int = 10 * SOL) -> None:
    signature = (await client.request_airdrop(key, lamports)).value
    await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)


async def until_slot(client: AsyncClient, slot: int) -> None:
    """Wait for a slot, polling slowly enough for a busy node."""
    while (await client.get_slot()).value < slot:
        await asyncio.sleep(0.05)


def move(payer: Keypair, to: Pubkey, lamports: int) -> Instruction:
    return transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports))


def sign(
    instructions: Sequence[Instruction], blockhash: Hash, *signers: Keypair
) -> VersionedTransaction:
    message = Message.new_with_blockhash(list(instructions), signers[0].pubkey(), blockhash)
    return VersionedTransaction(message, list(signers))


async def recent(client: AsyncClient) -> Hash:
    return (await client.get_latest_blockhash()).value.blockhash


async def send(
    client: AsyncClient, instructions: Sequence[Instruction], *signers: Keypair
) -> Signature:
    """Send a transaction and wait until it is confirmed."""
    transaction = sign(instructions, await recent(client), *signers)
    signature = (await client.send_transaction(transaction, OPTIONS)).value
    await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)
    return signature


async def transfer_new(
    client: AsyncClient, payer: Keypair, to: Pubkey | None = None
) -> tuple[Signature, Pubkey, int]:
    """Send a unique transfer. Return (signature, receiver, lamports)."""
    to, lamports = to or Keypair().pubkey(), next(_amounts)
    return await send(client, [move(payer, to, lamports)], payer), to, lamports


async def landed(
    client: AsyncClient, signature: Signature, encoding: str = "json"
) -> EncodedConfirmedTransactionWithStatusMeta:
    """Return a confirmed transaction. A validator writes it to its history a moment later."""
    async with asyncio.timeout(HISTORY_SECONDS):
        while True:
            transaction = (await client.get_transaction(signature, encoding, Confirmed, 0)).value
            if transaction is not None:
                return transaction
            await asyncio.sleep(0.05)


async def history(
    client: AsyncClient, address: Pubkey, count: int
) -> list[RpcConfirmedTransactionStatusWithSignature]:
    """Return an account's transactions, newest first, once `count` are in the node's history."""
    async with asyncio.timeout(HISTORY_SECONDS):
        while True:
            listed = (await client.get_signatures_for_address(address)).value
            if len(listed) >= count:
                return listed
            await asyncio.sleep(0.05)


async def rpc(url: str, method: str, *params: Any) -> dict[str, Any]:
    """Return the raw JSON-RPC answer."""
    answer = await post(url, {"jsonrpc": "2.0", "id": 7, "method": method, "params": list(params)})
    assert isinstance(answer, dict)
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == 7
    return answer


async def health(url: str) -> str:
    """Return the answer to GET /health."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
        return await response.text()


async def post(url: str, body: Any) -> Any:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        return await response.json()


def blank_account(payer: Keypair, key: Keypair, size: int) -> Instruction:
    """Return the instruction that creates an account of `size` zero bytes with ample lamports."""
    return create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(),
            to_pubkey=key.pubkey(),
            lamports=SOL,
            space=size,
            owner=PRELOADED_ID,
        )
    )


def memo(program: Pubkey, text: bytes) -> Instruction:
    return Instruction(program, text, [])


async def write_buffer(client: AsyncClient, payer: Keypair, data: bytes) -> Pubkey:
    """Create a loader buffer that holds `data`, as an account with bytes of our choice."""
    buffer = Keypair()
    size = 37 + len(data)
    lamports = (await client.get_minimum_balance_for_rent_exemption(size)).value
    creation = create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(),
            to_pubkey=buffer.pubkey(),
            lamports=lamports,
            space=size,
            owner=LOADER_ID,
        )
    )
    accounts = [
        AccountMeta(buffer.pubkey(), False, True),
        AccountMeta(payer.pubkey(), False, False),
    ]
    await send(
        client, [creation, Instruction(LOADER_ID, struct.pack("<I", 0), accounts)], payer, buffer
    )
    accounts = [AccountMeta(buffer.pubkey(), False, True), AccountMeta(payer.pubkey(), True, False)]
    sent = []
    for number, offset in enumerate(range(0, len(data), 900)):
        # On a busy machine, a large program takes longer than the 150 slots of a blockhash.
        if number % 20 == 0:
            blockhash = await recent(client)
        chunk = data[offset : offset + 900]
        write = Instruction(LOADER_ID, struct.pack("<IIQ", 1, offset, len(chunk)) + chunk, accounts)
        sent.append((await client.send_transaction(sign([write], blockhash, payer), OPTIONS)).value)
    for signature in sent:
        await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)
    return buffer.pubkey()


def program_data(program: Pubkey) -> Pubkey:
    return Pubkey.find_program_address([bytes(program)], LOADER_ID)[0]


async def deploy(client: AsyncClient, payer: Keypair, program: Keypair, elf: bytes) -> None:
    buffer = await write_buffer(client, payer, elf)
    key = program.pubkey()
    lamports = (await client.get_minimum_balance_for_rent_exemption(36)).value
    creation = create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(), to_pubkey=key, lamports=lamports, space=36, owner=LOADER_ID
        )
    )
    accounts = [
        AccountMeta(payer.pubkey(), True, True),
        AccountMeta(program_data(key), False, True),
        AccountMeta(key, False, True),
        AccountMeta(buffer, False, True),
        AccountMeta(RENT, False, False),
        AccountMeta(CLOCK, False, False),
        AccountMeta(SYSTEM_ID, False, False),
        AccountMeta(payer.pubkey(), True, False),
    ]
    finish = Instruction(LOADER_ID, struct.pack("<IQ", 2, len(elf) + 1000), accounts)
    await send(client, [creation, finish], payer, program)


async def upgrade(client: AsyncClient, payer: Keypair, program: Pubkey, elf: bytes) -> None:
    buffer = await write_buffer(client, payer, elf)
    accounts = [
        AccountMeta(program_data(program), False, True),
        AccountMeta(program, False, True),
        AccountMeta(buffer, False, True),
        AccountMeta(payer.pubkey(), False, True),
        AccountMeta(RENT, False, False),
        AccountMeta(CLOCK, False, False),
        AccountMeta(payer.pubkey(), True, False),
    ]
    await send(client, [Instruction(LOADER_ID, struct.pack("<I", 3), accounts)], payer)


async def close_program(client: AsyncClient, payer: Keypair, program: Pubkey) -> None:
    accounts = [
        AccountMeta(program_data(program), False, True),
        AccountMeta(payer.pubkey(), False, True),
        AccountMeta(payer.pubkey(), True, False),
        AccountMeta(program, False, True),
    ]
    await send(client, [Instruction(LOADER_ID, struct.pack("<I", 5), accounts)], payer)
