"""Tests that the sender of a dry run only simulates, and rejects unreadable replies."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from aiohttp import web
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import TransferParams, transfer

from aftermath.chain.dry_run import DryRunReport, DrySender, Outcome
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet
from chain.faults import answer
from chain.scripted_node import Node, serving

HELD = 10**9
AFTER = 10**9 - 5_000 + 77
"""Lamports of the wallet, and after a simulation that gives it 77 and takes the fee of one
signature.
"""


def simulated(accounts: Any, err: Any = None) -> dict[str, Any]:
    return {
        "context": {"slot": 7},
        "value": {"err": err, "logs": [], "unitsConsumed": 1_000, "accounts": accounts},
    }


def account(lamports: Any) -> dict[str, Any]:
    data = [base64.b64encode(b"").decode(), "base64"]
    return {
        "lamports": lamports,
        "owner": str(SYSTEM_PROGRAM),
        "executable": False,
        "rentEpoch": 0,
        "data": data,
    }


GOOD = simulated([account(AFTER)])
NONSENSE = [
    None,
    {"value": 7},
    simulated(None),
    simulated([]),
    simulated([account(AFTER), account(AFTER)]),
    simulated([account("much")]),
    simulated([account(AFTER) | {"data": "?"}]),
]


class Simulating(Node):
    """A node that gives these answers to consecutive simulations."""

    def __init__(self, *replies: Any) -> None:
        super().__init__()
        self._replies = list(replies)
        self.always = self._reply

    async def _reply(self, body: dict[str, Any]) -> web.Response:
        others = {
            "getGenesisHash": self.genesis,
            "getBalance": {"context": {"slot": 7}, "value": HELD},
            "getMinimumBalanceForRentExemption": 890_880,
        }
        return answer(
            body,
            self._replies.pop(0)
            if body["method"] == "simulateTransaction"
            else others[body["method"]],
        )


def paying(wallet: Wallet, to: Pubkey) -> Any:
    return transfer(TransferParams(from_pubkey=wallet.pubkey, to_pubkey=to, lamports=1))


async def rehearsed(node: Simulating, *groups: list[Pubkey]) -> DryRunReport:
    wallet = Wallet(Keypair())
    async with serving(node) as where, RpcPool(where) as pool:
        with pytest.raises(DryRunReport) as caught:
            await DrySender(pool, wallet, errors={}).send_each(
                [[paying(wallet, to) for to in group] for group in groups]
            )
    assert set(node.methods) <= {
        "getGenesisHash",
        "getBalance",
        "getMinimumBalanceForRentExemption",
        "simulateTransaction",
    }
    return caught.value


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_unreadable_simulation_is_requested_again(nonsense: Any) -> None:
    node = Simulating(nonsense, GOOD)
    report = await rehearsed(node, [Pubkey.new_unique()])
    assert node.count("simulateTransaction") == 2
    (one,) = report.simulated
    assert (one.outcome, one.units, one.fee, one.returned) == (Outcome.ACCEPTED, 1_100, 5_000, 77)
    assert report.refusal is None


async def test_dry_run_refusal_is_open_only_after_earlier_write() -> None:
    first = Pubkey.new_unique()
    second = Pubkey.new_unique()
    refusal = simulated([None], {"InstructionError": [2, {"Custom": 9}]})
    report = await rehearsed(Simulating(GOOD, refusal, refusal), [first], [first], [second])
    assert [one.outcome for one in report.simulated] == [
        Outcome.ACCEPTED,
        Outcome.OPEN,
        Outcome.REFUSED,
    ]
    assert report.refusal is not None
    assert report.refusal.name == "Custom9"


async def test_dry_sender_without_instructions_ends() -> None:
    node = Simulating()
    async with serving(node) as where, RpcPool(where) as pool:
        assert await DrySender(pool, Wallet(Keypair()), errors={}).send_packed([]) == []
    assert node.methods == []
