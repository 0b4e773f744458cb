"""Test limits of the runtime to the lamport: fees, spendable balances and rent."""

from __future__ import annotations

import pytest
from solders.account import Account
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.hash import Hash
from solders.keypair import Keypair
from solders.system_program import ID as SYSTEM_ID
from solders.transaction import VersionedTransaction

from aftermath.localnet.fees import LAMPORTS_PER_SIGNATURE
from aftermath.localnet.runtime import ExecutionOutcome, Runtime, minimum_balance
from localnet.localnet_requests import SOL, move, sign


def holding(runtime: Runtime, lamports: int) -> Keypair:
    """Return an account with this balance, which may be below the minimum."""
    payer = Keypair()
    runtime.store([(payer.pubkey(), Account(lamports, b"", SYSTEM_ID, False))])
    return payer


def moving(
    runtime: Runtime, payer: Keypair, lamports: int, priority: int, there_is: int = SOL
) -> ExecutionOutcome:
    """Return the outcome of a transfer to an existing account. `priority` is a fee in lamports."""
    there = holding(runtime, there_is).pubkey()
    units = 10_000
    price = 100 * priority
    extra = [set_compute_unit_limit(units), set_compute_unit_price(price)] if priority else []
    tx: VersionedTransaction = sign([*extra, move(payer, there, lamports)], Hash.default(), payer)
    outcome = runtime.execute(tx)
    assert outcome.fee.priority == priority
    return outcome


@pytest.mark.parametrize("priority", [0, 1, 2, 5_000])
def test_fee_needs_every_lamport(priority: int) -> None:
    fee = LAMPORTS_PER_SIGNATURE + priority
    runtime = Runtime()
    payer = holding(runtime, fee)
    outcome = moving(runtime, payer, 0, priority)
    assert outcome.landed
    assert outcome.error is None
    assert runtime.balance(payer.pubkey()) == 0
    payer = holding(runtime, fee - 1)
    outcome = moving(runtime, payer, 0, priority)
    assert (outcome.landed, outcome.error) == (False, "InsufficientFundsForFee")
    assert runtime.balance(payer.pubkey()) == fee - 1


@pytest.mark.parametrize("priority", [0, 1, 2, 5_000])
def test_fee_cannot_be_spent_twice_however_small(priority: int) -> None:
    fee = LAMPORTS_PER_SIGNATURE + priority
    runtime = Runtime()
    payer = holding(runtime, SOL)
    outcome = moving(runtime, payer, SOL - fee + 1, priority)
    assert outcome.error is not None
    assert outcome.landed
    assert runtime.balance(payer.pubkey()) == SOL - fee
    payer = holding(runtime, SOL)
    assert moving(runtime, payer, SOL - fee, priority).error is None
    assert runtime.balance(payer.pubkey()) == 0


def test_account_cannot_drop_below_rent_minimum() -> None:
    least = minimum_balance(0)
    runtime = Runtime()
    payer = holding(runtime, least)
    outcome = moving(runtime, payer, 0, 0)
    assert outcome.error == {"InsufficientFundsForRent": {"account_index": 0}}
    payer = holding(runtime, least - 1)
    assert moving(runtime, payer, 0, 0).error is None
    assert moving(runtime, holding(runtime, SOL), 0, 0, least - 1).error is None
    refused = moving(runtime, holding(runtime, SOL), 1, 0, least - 2)
    assert refused.error == {"InsufficientFundsForRent": {"account_index": 1}}
