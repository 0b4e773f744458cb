"""Tests of `train --dry-run` on a real local network: it predicts the cost of a join to the lamport
and changes nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.localnet.runtime import minimum_balance
from cli.cli_lone_member import join, leave
from cli.cli_runs import LOCAL, Outcome, Shell, invoke
from cli.test_cli_bad_input import ELSEWHERE
from cli.test_cli_bond import BOND, FEE, bonded
from cli.test_cli_dry_run import lamports

__all__ = ["bonded"]

FAR = ("--rpc-2", ELSEWHERE, "--data-root", "/")
"""A node that is not of this machine: the run's local paths are not opened then, unless the member
says where.
"""


def dry(shell: Shell, run_id: str, *more: str | Path | int) -> Outcome:
    return shell("train", *LOCAL, "--run-id", run_id, *more, "--dry-run")


def dump(shell: Shell, run_id: str) -> Any:
    return invoke("json-dump-run", "--rpc", shell.rpc, "--run-id", run_id).out


def test_join_dry_run_predicts_cost_and_refund_to_the_lamport(
    bonded: Shell, run_id: str, tmp_path: Path
) -> None:
    before = lamports(bonded)
    dump_before = dump(bonded, run_id)
    never = tmp_path / "never"
    data = dry(
        bonded, run_id, "--max-bond", BOND, "--checkpoint-dir", never, "--events-dir", never
    ).data
    assert (lamports(bonded), dump(bonded, run_id), never.exists()) == (before, dump_before, False)
    assert (data["dry_run"], data["refusal"], data["run_id"], data["tier"]) == (
        True,
        None,
        run_id,
        0,
    )
    (sent,) = data["transactions"]
    assert (sent["outcome"], sent["instructions"]) == (
        "accepted",
        ["coordinator.enroll", "coordinator.join_run"],
    )
    assert [one["rent_lamports"] for one in data["accounts"]] == [minimum_balance(168)]
    assert data["bond_lamports"] == BOND
    asyncio.run(join(bonded, run_id, BOND))
    assert before - lamports(bonded) == data["total_lamports"]
    again = dry(bonded, run_id, "--max-bond", BOND).data
    assert (again["total_lamports"], again["bond_lamports"], again["accounts"]) == (
        again["fees_lamports"],
        0,
        [],
    )
    asyncio.run(leave(bonded, run_id))
    back = bonded("withdraw", "--run-id", run_id).data["lamports_returned"]
    assert back + FEE == data["withdrawable_lamports"]


def test_join_dry_run_text_lists_costs_and_exclusions(bonded: Shell, run_id: str) -> None:
    line = (
        "train",
        "--rpc",
        bonded.rpc,
        "-w",
        bonded.wallet,
        *LOCAL,
        "--run-id",
        run_id,
        "--max-bond",
        BOND,
    )
    outcome = invoke(*line, "--dry-run")
    assert outcome.code == 0, outcome.err
    text = " ".join(outcome.out.split())
    for words in (
        "nothing was sent",
        "of rent, 0.02 SOL of bond",
        "returns 0.02",
        "on top a fee for each transaction",
    ):
        assert words in text
    assert "next:" not in outcome.err


def test_join_dry_run_of_empty_wallet_requests_no_funds(bonded: Shell, run_id: str) -> None:
    create_wallet(bonded.wallet.with_name("poor.json"))
    poor = Shell(bonded.rpc, bonded.wallet.with_name("poor.json"))
    data = dry(poor, run_id, "--max-bond", BOND).data
    assert (data["held_lamports"], data["transactions"][0]["outcome"], lamports(poor)) == (
        0,
        "open",
        0,
    )
    assert data["needed_lamports"] > data["total_lamports"] > BOND
    elsewhere = dry(poor, run_id, "--max-bond", BOND, *FAR)
    assert elsewhere.error["code"] == "insufficient-funds"
    assert lamports(poor) == 0


@pytest.mark.parametrize(
    ("earlier_command", "more"),
    [
        ((), ()),
        ((), ("--max-bond", BOND, "--matformer-tier", 7)),
        (("set-paused", "pause"), ("--max-bond", BOND)),
        (("update-config", "--client-version", "of old"), ("--max-bond", BOND)),
    ],
    ids=["bond", "tier", "halted", "version"],
)
def test_join_dry_run_refusals_equal_can_join(
    bonded: Shell, run_id: str, earlier_command: tuple[str, ...], more: tuple[str | int, ...]
) -> None:
    if earlier_command and earlier_command[0] != "set-paused":
        assert bonded("set-paused", "--run-id", run_id, "pause").code == 0
    if earlier_command:
        assert bonded(earlier_command[0], "--run-id", run_id, *earlier_command[1:]).code == 0
    if earlier_command and earlier_command[0] != "set-paused":
        assert bonded("set-paused", "--run-id", run_id, "resume").code == 0
    outcome = bonded(
        "can-join", "--run-id", run_id, "--address", bonded.wallet, "--device", "cpu", *more
    )
    refused = dry(bonded, run_id, *more)
    assert refused.code == outcome.code != 0
    assert refused.out == ""
    assert f'"{refused.error_json["code"]}"' in outcome.out
    assert refused.error_json["error"] in outcome.out
