"""Programs on both engines: the preloaded one runs; one deployed by transactions runs, is upgraded and closed."""

from __future__ import annotations

import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.core import RPCException
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from localnet.chainwork import PRELOADED_ID, close_program, deploy, memo, recent, send, sign, upgrade

TOKEN_ID = Pubkey.from_string("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA")


async def logs_of(client: AsyncClient, program: Pubkey, payer: Keypair, data: bytes) -> list[str]:
    signature = await send(client, [memo(program, data)], payer)
    found = (await client.get_transaction(signature, "json", Confirmed, 0)).value
    assert found is not None
    assert found.transaction.meta is not None
    return found.transaction.meta.log_messages or []


async def next_slot(client: AsyncClient) -> None:
    """A program is callable from the slot after its deployment."""
    slot = (await client.get_slot()).value
    while (await client.get_slot()).value <= slot + 1:
        pass


async def test_the_preloaded_program_runs(client: AsyncClient, payer: Keypair) -> None:
    assert any('"good"' in line for line in await logs_of(client, PRELOADED_ID, payer, b"good"))


async def test_deploy_upgrade_close(client: AsyncClient, payer: Keypair, memo_elf: bytes) -> None:
    program = Keypair()
    token = LiteSVM().get_account(TOKEN_ID)
    assert token is not None
    await deploy(client, payer, program, token.data)
    await next_slot(client)
    with pytest.raises(RPCException, match=r"InvalidInstruction|Custom"):
        await client.send_transaction(sign([memo(program.pubkey(), b"\xf0")], await recent(client), payer))
    await upgrade(client, payer, program.pubkey(), memo_elf)
    await next_slot(client)
    assert any('"upgraded"' in line for line in await logs_of(client, program.pubkey(), payer, b"upgraded"))
    await close_program(client, payer, program.pubkey())
    await next_slot(client)
    with pytest.raises(
        RPCException,
        match="may not be used for executing|does not exist|not deployed|UnsupportedProgramId|InvalidAccountData",
    ):
        await client.send_transaction(sign([memo(program.pubkey(), b"gone")], await recent(client), payer))
