"""Tests of reading a run's transactions from a node: fees, figures of witnesses, order and
limits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.chain import transactions
from aftermath.chain.addresses import run_addresses
from aftermath.chain.endpoints import endpoint
from aftermath.chain.instructions import witness_metadata
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.transactions import (
    PAGE,
    RunTransactions,
    WitnessFigures,
    _witness,
    _witness_figures,
)
from aftermath.coordinator.errors import Unavailable
from aftermath.rules.state import RunState
from chain.funded_network import SCHEMA_HASH, FundedNetwork
from chain.scripted_node import Answer, Node, by_method, result, serving


def reader(funded: FundedNetwork, run_id: str, **options: int) -> RunTransactions:
    program = funded.coordinator.program_id
    return RunTransactions(funded.pool, run_addresses(program, run_id).run, program, **options)


async def test_sent_transaction_is_read_once_with_fee(funded: FundedNetwork) -> None:
    coordinator = await funded.configured_run("read")
    transactions = reader(funded, "read")
    async with asyncio.timeout(30):
        first = []
        while not first or not transactions.complete:
            first += await transactions.read(2)
    assert len(first) >= 2
    assert all(
        one.fee >= 5000 and one.payer == funded.wallet.pubkey and not one.stated for one in first
    )
    await coordinator.set_paused("read", False)
    async with asyncio.timeout(30):
        while not (more := await transactions.read(10)):
            await asyncio.sleep(0.1)
    assert [one.fee for one in more] == [5000]


async def test_witness_metadata_is_read(embedded: FundedNetwork) -> None:
    coordinator = await embedded.open_run("stated")
    async with SolanaMember(embedded.pool, embedded.wallet, "stated", client_version="") as member:
        await member.join(
            p2p=bytes(Keypair().pubkey()), tier=0, weight=1, schema_hash=SCHEMA_HASH, stateless=True
        )
        async with asyncio.timeout(30):
            while not (run := await coordinator.run("stated")).state.training:
                try:
                    if run.state is RunState.WARMUP and run.seed_is_drawn:
                        await member.warmup_witness(0, run.round_id)
                    else:
                        await member.tick()
                except Exception:
                    await asyncio.sleep(0.05)
        metadata = {"loss": 2.3456, "tokens_per_sec": 1234.0, "bytes_per_sec": 99.0}
        await member.witness(0, run.round_id, 0, bytes(320), step=1, **metadata)
        newest = (await reader(embedded, "stated").read(1))[0]
    assert newest.stated == (WitnessFigures(0, 1, 2.346, 1234, 99),)


@pytest.mark.parametrize("loss", [0.0, float("nan"), float("inf")])
def test_invalid_loss_of_witness_is_none(loss: float) -> None:
    attestation: Any = {"at": {"epoch": 3}, "metadata": witness_metadata(7, loss, 1.0, 2.0)}
    assert _witness_figures(attestation) == WitnessFigures(3, 7, None, 1, 2)


def test_other_instructions_are_not_read_as_witness() -> None:
    witness = _witness()
    whole = witness.discriminator + bytes(witness.dtype.itemsize)
    assert witness.read(whole) is not None
    for other in (b"", whole[:-1], whole + b"\0", bytes(len(whole))):
        assert witness.read(other) is None


async def test_first_transaction_read_goes_back_few_pages(
    embedded: FundedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "PAGES_BACK", 2)
    coordinator = await embedded.configured_run("long")
    for paused in (False, True) * 2:
        await coordinator.set_paused("long", paused)
    history = reader(embedded, "long", page=2)
    assert len(await history.read(100)) == 4
    assert not history.complete
    assert await history.read(100) == []
    await coordinator.set_paused("long", False)
    assert len(await history.read(100)) == 1


SIGNATURE = {"signature": str(Signature.default()), "slot": 1}


@pytest.mark.parametrize(
    "listed", [7, [7], [{"signature": "x", "slot": 1}], [SIGNATURE] * (PAGE + 1)]
)
async def test_malformed_list_is_node_failure(listed: Any) -> None:
    await _first_node_is_left(result(listed))


@pytest.mark.parametrize(
    "transaction",
    [
        7,
        {},
        {"slot": 1, "transaction": ["AAAA", "base64"], "meta": {"err": None, "fee": 1}},
        {"slot": 1, "transaction": ["AAAA", "base58"], "meta": {"err": None, "fee": 1}},
        {"slot": 1, "transaction": "AAAA", "meta": {}},
    ],
)
async def test_malformed_transaction_is_node_failure(transaction: Any) -> None:
    await _first_node_is_left(result([SIGNATURE]), result(transaction), result(transaction))


async def _first_node_is_left(*script: Answer) -> None:
    broken = Node()
    honest = Node()
    broken.script = [*script] + [result(7)] * 2
    honest.always = by_method(
        getGenesisHash=honest.genesis, getSignaturesForAddress=[], getTransaction=None
    )
    async with serving(broken, honest) as endpoints, RpcPool(endpoints) as pool:
        assert await RunTransactions(pool, Pubkey.default(), Pubkey.default()).read(1) == []
    assert honest.methods[-1] == broken.methods[-1]


async def test_transactions_without_answer_are_an_outage() -> None:
    async with RpcPool([endpoint("http://127.0.0.1:9")], patience=0.5) as pool:
        with pytest.raises(Unavailable):
            await RunTransactions(pool, Pubkey.default(), Pubkey.default()).read(1)


async def test_memos_of_strangers_do_not_hide_transactions() -> None:
    """Anybody can name a run in a transaction with a memo full of commas."""
    node = Node()
    listed = [
        {"signature": str(Signature.new_unique()), "slot": 1, "memo": "[900] " + "," * 900}
        for _ in range(PAGE)
    ]
    node.script = [result(listed), result(None)]
    async with serving(node) as endpoints, RpcPool(endpoints) as pool:
        transactions = RunTransactions(pool, Pubkey.default(), Pubkey.default(), page=PAGE + 1)
        async with asyncio.timeout(10):
            assert await transactions.read(1) == []
    assert node.count("getTransaction") == 1
