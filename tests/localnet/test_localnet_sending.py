"""Test that both engines send, simulate and refuse transactions alike."""

from __future__ import annotations

import base64
import struct
from typing import Any

import based58
import pytest
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed
from solana.rpc.core import RPCException
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.instruction import AccountMeta, CompiledInstruction, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.rpc.errors import SendTransactionPreflightFailureMessage
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_ID
from solders.transaction import VersionedTransaction

from localnet.localnet_processes import Urls
from localnet.localnet_requests import (
    OPTIONS,
    PRELOADED_ID,
    SOL,
    UNCHECKED,
    history,
    landed,
    memo,
    move,
    recent,
    rpc,
    send,
    sign,
    transfer_new,
    until_slot,
)

BASE64 = {"encoding": "base64", "commitment": "confirmed", "preflightCommitment": "confirmed"}
INCINERATOR = Pubkey.from_string("1nc1nerator11111111111111111111111111111111")
LOOKUP_PROGRAM = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")


def encoded(tx: VersionedTransaction) -> str:
    return base64.b64encode(bytes(tx)).decode()


async def refusal(url: str, tx: VersionedTransaction, **options: Any) -> dict[str, Any]:
    error: dict[str, Any] = (await rpc(url, "sendTransaction", encoded(tx), {**BASE64, **options}))[
        "error"
    ]
    return error


async def test_transfer_end_to_end_moves_lamports(client: AsyncClient, payer: Keypair) -> None:
    before = (await client.get_balance(payer.pubkey())).value
    signature, to, lamports = await transfer_new(client, payer)
    assert (await client.get_balance(to)).value == lamports
    assert (await client.get_balance(payer.pubkey())).value == before - lamports - 5000
    status = (await client.get_signature_statuses([signature])).value[0]
    assert status is not None
    assert status.err is None


async def test_base58_transaction_is_accepted(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([move(payer, Keypair().pubkey(), SOL)], await recent(client), payer)
    text = based58.b58encode(bytes(tx)).decode()
    answer = await rpc(
        network.rpc_url, "sendTransaction", text, {"preflightCommitment": "confirmed"}
    )
    assert answer["result"] == str(tx.signatures[0])


async def test_preflight_error_names_failure(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([move(payer, Keypair().pubkey(), 100 * SOL)], await recent(client), payer)
    error = await refusal(network.rpc_url, tx)
    assert error["code"] == -32002
    assert error["message"] == (
        "Transaction simulation failed: Error processing Instruction 0: custom program error: 0x1"
    )
    assert error["data"]["err"] == {"InstructionError": [0, {"Custom": 1}]}
    assert error["data"]["logs"][0] == "Program 11111111111111111111111111111111 invoke [1]"
    assert error["data"]["logs"][-1].endswith("failed: custom program error: 0x1")
    assert error["data"]["unitsConsumed"] == 150
    with pytest.raises(RPCException) as caught:
        await client.send_transaction(tx, OPTIONS)
    assert isinstance(caught.value.args[0], SendTransactionPreflightFailureMessage)
    assert (await client.get_signature_statuses([tx.signatures[0]])).value == [None]


async def test_preflight_program_error_has_logs(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    error = await refusal(
        network.rpc_url, sign([memo(PRELOADED_ID, b"\xff\xfe")], await recent(client), payer)
    )
    assert error["code"] == -32002
    assert error["message"].endswith("Error processing Instruction 0: invalid instruction data")
    assert error["data"]["err"] == {"InstructionError": [0, "InvalidInstructionData"]}


async def test_wrong_signature_is_refused(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([move(payer, Keypair().pubkey(), SOL)], await recent(client), payer)
    forged = VersionedTransaction.populate(tx.message, [Keypair().sign_message(b"other")])
    error = await refusal(network.rpc_url, forged)
    assert error["code"] == -32002
    assert (
        error["message"]
        == "Transaction simulation failed: Transaction did not pass signature verification"
    )
    assert error["data"]["err"] == "SignatureFailure"
    answer = await rpc(
        network.rpc_url, "sendTransaction", encoded(forged), {**BASE64, "skipPreflight": True}
    )
    assert answer["result"] == str(forged.signatures[0])
    await transfer_new(client, payer)
    assert (await client.get_signature_statuses([forged.signatures[0]])).value == [None]


async def test_unlisted_instruction_account_is_refused(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    accounts = [payer.pubkey(), SYSTEM_ID]
    blockhash = await recent(client)
    message = Message.new_with_compiled_instructions(
        1, 0, 1, accounts, blockhash, [CompiledInstruction(77, b"", b"")]
    )
    error = await refusal(
        network.rpc_url,
        VersionedTransaction.populate(message, [payer.sign_message(bytes(message))]),
    )
    assert error["code"] == -32602
    assert "sanitize" in error["message"]


async def test_unknown_blockhash_is_refused(network: Urls, payer: Keypair) -> None:
    error = await refusal(
        network.rpc_url, sign([move(payer, Keypair().pubkey(), SOL)], Hash.new_unique(), payer)
    )
    assert error["code"] == -32002
    assert error["message"] == "Transaction simulation failed: Blockhash not found"
    assert error["data"]["err"] == "BlockhashNotFound"


async def test_repeated_transaction_is_refused(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([move(payer, Keypair().pubkey(), SOL)], await recent(client), payer)
    await client.confirm_transaction(
        (await client.send_transaction(tx, OPTIONS)).value, Confirmed, sleep_seconds=0.1
    )
    before = (await client.get_balance(payer.pubkey())).value
    error = await refusal(network.rpc_url, tx)
    assert error["code"] == -32002
    assert (
        error["message"]
        == "Transaction simulation failed: This transaction has already been processed"
    )
    assert error["data"]["err"] == "AlreadyProcessed"
    answer = await rpc(
        network.rpc_url, "sendTransaction", encoded(tx), {**BASE64, "skipPreflight": True}
    )
    assert answer["result"] == str(tx.signatures[0])
    assert (await client.get_balance(payer.pubkey())).value == before


async def test_missing_payer_or_program_is_named(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    poor = Keypair()
    error = await refusal(
        network.rpc_url, sign([move(poor, payer.pubkey(), 1)], await recent(client), poor)
    )
    assert error["data"]["err"] == "AccountNotFound"
    missing = Instruction(Keypair().pubkey(), b"", [])
    error = await refusal(network.rpc_url, sign([missing], await recent(client), payer))
    assert error["data"]["err"] == "ProgramAccountNotFound"
    assert error["message"].endswith("Attempt to load a program that does not exist")


async def test_incinerator_receives_any_amount(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    """It receives the bonds of ejected members."""
    tx = sign([move(payer, INCINERATOR, 1)], await recent(client), payer)
    answer = await rpc(network.rpc_url, "sendTransaction", encoded(tx), BASE64)
    assert answer["result"] == str(tx.signatures[0])


async def test_account_below_rent_minimum_is_refused(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    error = await refusal(
        network.rpc_url, sign([move(payer, Keypair().pubkey(), 1)], await recent(client), payer)
    )
    assert error["code"] == -32002
    assert error["data"]["err"] == {"InsufficientFundsForRent": {"account_index": 1}}
    assert error["message"].endswith(
        "Transaction results in an account (1) with insufficient funds for rent"
    )


@pytest.mark.parametrize("price", [0, 1_000_000])
async def test_skipped_preflight_lands_failed_transaction(
    client: AsyncClient, payer: Keypair, price: int
) -> None:
    before = (await client.get_balance(payer.pubkey())).value
    fee = 5000 + price * 203_000 // 10**6 if price else 5000
    extra = [set_compute_unit_price(price)] if price else []
    tx = sign([*extra, memo(PRELOADED_ID, b"\xff")], await recent(client), payer)
    signature = (await client.send_transaction(tx, UNCHECKED)).value
    await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)
    status = (await client.get_signature_statuses([signature])).value[0]
    assert status is not None
    assert "InvalidInstructionData" in str(status.err)
    assert (await client.get_balance(payer.pubkey())).value == before - fee
    transaction = await landed(client, signature)
    assert transaction.transaction.meta is not None
    assert transaction.transaction.meta.fee == fee
    assert transaction.transaction.meta.err is not None


async def test_compute_limit_is_enforced(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    short = [set_compute_unit_limit(1_000), memo(PRELOADED_ID, b"x" * 100)]
    error = await refusal(network.rpc_url, sign(short, await recent(client), payer))
    assert error["data"]["err"] == {"InstructionError": [1, "ProgramFailedToComplete"]}
    assert error["data"]["unitsConsumed"] == 1_000
    enough = [set_compute_unit_limit(60_000), memo(PRELOADED_ID, b"x" * 100)]
    await send(client, enough, payer)


async def test_simulation_shows_and_keeps_nothing(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    to = Keypair().pubkey()
    unsigned = VersionedTransaction.populate(
        sign([move(payer, to, SOL), memo(PRELOADED_ID, b"hello")], Hash.default(), payer).message,
        [Signature.default()],
    )
    options = {**BASE64, "replaceRecentBlockhash": True}
    accounts = {"encoding": "base64", "addresses": [str(to)]}
    value = (
        await rpc(
            network.rpc_url,
            "simulateTransaction",
            encoded(unsigned),
            {**options, "accounts": accounts},
        )
    )["result"]["value"]
    assert value["err"] is None
    assert any('Memo (len 5): "hello"' in line for line in value["logs"])
    assert value["unitsConsumed"] > 150
    assert value["fee"] == 5000
    assert value["postBalances"][0] == value["preBalances"][0] - SOL - 5000
    assert value["accounts"][0]["lamports"] == SOL
    assert Hash.from_string(value["replacementBlockhash"]["blockhash"]) != Hash.default()
    assert (await client.get_balance(to)).value == 0


async def test_simulation_of_failing_transaction_shows_error(
    network: Urls, client: AsyncClient, payer: Keypair
) -> None:
    tx = sign([memo(PRELOADED_ID, b"\xff")], await recent(client), payer)
    simulation = (
        await client.simulate_transaction(tx, sig_verify=True, commitment=Confirmed)
    ).value
    assert "InvalidInstructionData" in str(simulation.err)
    stale = sign([memo(PRELOADED_ID, b"x")], Hash.new_unique(), payer)
    assert "BlockhashNotFound" in str((await client.simulate_transaction(stale)).value.err)
    forged = VersionedTransaction.populate(tx.message, [Signature.default()])
    options = {**BASE64, "sigVerify": True}
    shown_forged = (await rpc(network.rpc_url, "simulateTransaction", encoded(forged), options))[
        "result"
    ]["value"]
    assert shown_forged["err"] == "SignatureFailure"
    options["replaceRecentBlockhash"] = True
    assert (await rpc(network.rpc_url, "simulateTransaction", encoded(forged), options))["error"][
        "code"
    ] == -32602


async def test_versioned_transaction_with_lookup_table_lands(
    client: AsyncClient, payer: Keypair
) -> None:
    slot = (await client.get_slot()).value
    await until_slot(client, slot + 1)
    table, bump = Pubkey.find_program_address(
        [bytes(payer.pubkey()), struct.pack("<Q", slot)], LOOKUP_PROGRAM
    )
    to = Keypair().pubkey()
    who = [AccountMeta(table, False, True), AccountMeta(payer.pubkey(), True, False)]
    rest = [AccountMeta(payer.pubkey(), True, True), AccountMeta(SYSTEM_ID, False, False)]
    create = Instruction(LOOKUP_PROGRAM, struct.pack("<IQB", 0, slot, bump), [*who, *rest])
    extend = Instruction(LOOKUP_PROGRAM, struct.pack("<IQ", 2, 1) + bytes(to), [*who, *rest])
    await send(client, [create, extend], payer)
    # The table's new entries are usable from the next slot.
    await until_slot(client, (await client.get_slot()).value + 2)
    known = AddressLookupTableAccount(table, [to])
    message = MessageV0.try_compile(
        payer.pubkey(), [move(payer, to, SOL)], [known], await recent(client)
    )
    assert to not in message.account_keys
    signature = (
        await client.send_transaction(VersionedTransaction(message, [payer]), OPTIONS)
    ).value
    await client.confirm_transaction(signature, Confirmed, sleep_seconds=0.1)
    assert (await client.get_balance(to)).value == SOL
    transaction = await landed(client, signature)
    assert transaction.transaction.meta is not None
    assert transaction.transaction.meta.loaded_addresses is not None
    assert [str(key) for key in transaction.transaction.meta.loaded_addresses.writable] == [str(to)]
    assert [one.signature for one in await history(client, to, 1)] == [signature]
