"""Test programs on both engines: a preloaded one, and one that is deployed, upgraded and closed."""

from __future__ import annotations

import based58
import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.core import RPCException
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_ID
from solders.system_program import CreateAccountParams, create_account

from localnet.localnet_requests import (
    PRELOADED_ID,
    close_program,
    deploy,
    landed,
    memo,
    recent,
    send,
    sign,
    until_slot,
    upgrade,
)

ASSOCIATED_ID = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
TOKEN_ID = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")


async def logs_of(client: AsyncClient, program: Pubkey, payer: Keypair, data: bytes) -> list[str]:
    signature = await send(client, [memo(program, data)], payer)
    transaction = await landed(client, signature)
    assert transaction.transaction.meta is not None
    return transaction.transaction.meta.log_messages or []


async def next_slot(client: AsyncClient) -> None:
    """Wait two slots: a program can be called from the slot after its deployment."""
    await until_slot(client, (await client.get_slot()).value + 2)


async def test_preloaded_program_runs(client: AsyncClient, payer: Keypair) -> None:
    assert any('"good"' in line for line in await logs_of(client, PRELOADED_ID, payer, b"good"))


async def test_inner_instructions_are_returned(client: AsyncClient, payer: Keypair) -> None:
    mint = Keypair()
    lamports = (await client.get_minimum_balance_for_rent_exemption(82)).value
    creation = create_account(
        CreateAccountParams(
            from_pubkey=payer.pubkey(),
            to_pubkey=mint.pubkey(),
            lamports=lamports,
            space=82,
            owner=TOKEN_ID,
        )
    )
    initialize = Instruction(
        TOKEN_ID,
        bytes((20, 0)) + bytes(payer.pubkey()) + b"\0",
        [AccountMeta(mint.pubkey(), False, True)],
    )
    owner = Keypair().pubkey()
    wallet, _ = Pubkey.find_program_address(
        [bytes(owner), bytes(TOKEN_ID), bytes(mint.pubkey())], ASSOCIATED_ID
    )
    accounts = [
        AccountMeta(payer.pubkey(), True, True),
        AccountMeta(wallet, False, True),
        AccountMeta(owner, False, False),
        AccountMeta(mint.pubkey(), False, False),
        AccountMeta(SYSTEM_ID, False, False),
        AccountMeta(TOKEN_ID, False, False),
    ]
    signature = await send(
        client, [creation, initialize, Instruction(ASSOCIATED_ID, b"", accounts)], payer, mint
    )
    transaction = await landed(client, signature)
    assert transaction.transaction.meta is not None
    (inner,) = transaction.transaction.meta.inner_instructions or []
    assert inner.index == 2
    called = [based58.b58decode(one.data.encode()) for one in inner.instructions]
    assert bytes((18,)) + bytes(owner) in called  # InitializeAccount3 { owner }
    assert {one.stack_height for one in inner.instructions} == {2}


@pytest.mark.slow
async def test_program_is_deployed_upgraded_and_closed(
    client: AsyncClient, payer: Keypair, memo_elf: bytes
) -> None:
    program = Keypair()
    token = LiteSVM().get_account(TOKEN_ID)
    assert token is not None
    await deploy(client, payer, program, token.data)
    await next_slot(client)
    with pytest.raises(RPCException, match=r"InvalidInstruction|Custom"):
        await client.send_transaction(
            sign([memo(program.pubkey(), b"\xf0")], await recent(client), payer)
        )
    await upgrade(client, payer, program.pubkey(), memo_elf)
    await next_slot(client)
    assert any(
        '"upgraded"' in line for line in await logs_of(client, program.pubkey(), payer, b"upgraded")
    )
    await close_program(client, payer, program.pubkey())
    await next_slot(client)
    with pytest.raises(RPCException, match=r"InvalidProgramForExecution|UnsupportedProgramId"):
        await client.send_transaction(
            sign([memo(program.pubkey(), b"gone")], await recent(client), payer)
        )
