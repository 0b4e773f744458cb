"""Tests that compare `estimate` with the costs of a run on the embedded chain."""

from __future__ import annotations

import asyncio
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from solders.pubkey import Pubkey

from aftermath.audit.cost import AUDIT_OVER_SHARE
from aftermath.chain.accounts import balance
from aftermath.chain.endpoints import endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet, create_wallet
from aftermath.cli.estimate import Pace, pace
from aftermath.config.document import load_config
from aftermath.model.initial_weights import init_weights
from aftermath.owner.schema import shape_of
from aftermath.replica.pass_size import PassSize
from aftermath.replica.replica import Replica
from aftermath.testnet.files import SHIPPED
from cli.cli_lone_member import quick_config
from cli.cli_runs import Shell, invoke
from cli.conftest import ROOT
from rules import builders


def estimated(path: Path, *more: str | int) -> dict[str, Any]:
    data: dict[str, Any] = invoke("estimate", "--config-path", path, *more, "--json").data
    return data


async def balance_of(rpc: str, key: Pubkey, *, at_least: int = 0) -> int:
    """Return a wallet's balance, after an airdrop if requested."""
    async with RpcPool([endpoint(rpc)]) as pool, asyncio.timeout(20):
        if at_least:
            await pool.call(lambda node: node.request_airdrop(key, at_least))
        while (has := await balance(pool, key)) < at_least:
            await asyncio.sleep(0.05)
        return has


async def join(rpc: str, wallet: Wallet, run_id: str) -> None:
    async with (
        RpcPool([endpoint(rpc)]) as pool,
        SolanaMember(pool, wallet, run_id, client_version="") as chain,
    ):
        schema_hash = (await chain.view()).model.schema_hash
        await chain.join(
            p2p=wallet.public, tier=0, weight=1, schema_hash=schema_hash, stateless=True
        )


def test_estimate_equals_actual_costs(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    """The faucet funded both wallets before, so that nothing is added during the test."""
    path = quick_config(run_dir, tmp_path)
    key = Pubkey.from_string(invoke("show-identity", "-w", owner.wallet, "--json").data["wallet"])
    member = create_wallet(tmp_path / "member.json")
    data = estimated(path)
    assert data["members"] == 1

    before = asyncio.run(balance_of(owner.rpc, key, at_least=5 * 10**9))
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", path).code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    spent = before - asyncio.run(balance_of(owner.rpc, key))
    assert spent == pytest.approx(data["owner"]["lamports"], rel=0.1)
    assert spent <= data["owner"]["lamports"]
    assert spent - data["owner"]["rent"] > 0  # rents are exact, so the difference is fees

    before = asyncio.run(balance_of(owner.rpc, member.pubkey, at_least=10**9))
    asyncio.run(join(owner.rpc, member, run_id))
    joined = before - asyncio.run(balance_of(owner.rpc, member.pubkey))
    assert joined == pytest.approx(data["member"]["rent"] + data["member"]["join_fee"], rel=0.1)
    assert spent + joined == pytest.approx(
        data["lamports"] - data["member"]["fees_until_the_end"], rel=0.1
    )


def test_estimate_bytes_equal_result_size(run_dir: Path) -> None:
    data = estimated(run_dir / "config.toml")
    config = load_config(run_dir / "config.toml")
    schema = shape_of(config).schema
    tokens = torch.randint(schema.state.config.vocab_size, (2, config.llm.max_seq_len))
    for tier, sent in enumerate(data["bytes_per_round"]):
        replica = Replica(
            schema,
            schema.state.config,
            tier,
            init_weights(schema.state.config, 1, tier),
            device=torch.device("cpu"),
            pass_size=PassSize(1, "off"),
            stopwatch=time.monotonic,
        )
        trained = replica.train(tokens, 1e-3, 1e-3, threading.Event())
        assert sum(map(len, trained.payloads.values())) == pytest.approx(sent, rel=0.1)
    assert data["memory_bytes"] == sorted(data["memory_bytes"], reverse=True)


def test_estimate_states_what_audits_cost(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = (run_dir / "config.toml").read_text()
    path.write_text(text.replace("[config]\n", "[config]\nverification_percent = 6\n", 1))
    assert "audits" not in estimated(path, "--members", 4)
    cost = estimated(path, "--members", 5)["audits"]
    assert cost["compute"] == pytest.approx(0.06 * AUDIT_OVER_SHARE)
    assert cost["upload_bytes"] == sorted(cost["upload_bytes"], reverse=True)
    shown = invoke("estimate", "--config-path", path, "--members", 5).out
    assert "each member does 11% more training" in shown


def test_owner_page_quotes_the_estimate_of_its_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/owner.md").read_text()
    commands = [
        shlex.split(line)[1:]
        for line in page.splitlines()
        if line.startswith(("aftermath-solana init ", "aftermath-solana estimate "))
    ]
    init, estimate = commands[:2]
    assert invoke(*init).code == 0
    text = invoke(*estimate).out
    for start in ("SOL in all", "by tier"):
        (quoted,) = (line for line in page.splitlines() if line.startswith(start))
        assert quoted.removesuffix(" …") in text


def test_estimate_has_tokens_time_and_members(run_dir: Path, tmp_path: Path) -> None:
    """12 sequences of 64 in each of 48 steps, three epochs of 16 rounds of 21 s, each with 75 s
    around it.
    """
    data = estimated(run_dir / "config.toml")
    assert data["tokens"] == 12 * 64 * 48
    assert data["seconds_per_round_at_most"] == 21
    assert data["seconds_at_most"] == 48 * 21 + 3 * 75
    more = estimated(run_dir / "config.toml", "--members", 30)
    assert more["lamports"] - data["lamports"] == 27 * data["member"]["lamports"]
    text = (run_dir / "config.toml").read_text()
    (tmp_path / "grows.toml").write_text(
        text.replace(
            "global_batch_size_end = 12",
            f"global_batch_size_end = 24\nglobal_batch_size_warmup_tokens = {12 * 64 * 4}",
        )
    )
    grown = estimated(tmp_path / "grows.toml")
    assert data["tokens"] < grown["tokens"] < 2 * data["tokens"]
    output = invoke("estimate", "--config", run_dir / "config.toml").out
    assert "21 minutes at most, in rounds of 21 s at most" in output
    assert "SOL in all" in output
    assert f"{data['tokens']:,} in 48 steps" in output
    for members, words in ((1, "with 1 member, of which"), (2, "with 2 members, of which")):
        assert (
            words
            in invoke(
                "estimate", "--config-path", run_dir / "config.toml", "--members", members
            ).out
        )


def test_estimate_of_planned_model_uses_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimate a config of the package in a directory without its model and tokens."""
    monkeypatch.chdir(tmp_path)
    outcome = invoke("estimate", "--config-path", SHIPPED / "demo/config.toml", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.data["parameters"] == [1_049_984, 656_768, 460_160]
    assert "does not exist yet" in outcome.err


def test_estimate_with_device_contains_measured_speed(run_dir: Path) -> None:
    """The estimate contains each tier's measured speed, and the time that follows from it."""
    config = load_config(run_dir / "config.toml")
    tiers = config.llm.matformer.tiers
    outcome = invoke(
        "estimate",
        "--config",
        run_dir / "config.toml",
        "--members",
        5,
        "--device",
        "cpu",
        "--json",
    )
    assert outcome.code == 0, outcome.err
    assert [pace["tier"] for pace in outcome.data["here"]] == list(range(tiers))
    for one in outcome.data["here"]:
        speed = one["sequences_per_minute"]
        assert speed > 0
        # 12 for 5
        assert one["seconds_per_round"] == pytest.approx(
            max(config.config.min_round_time, 3 * 60 / speed)
        )
        assert 0 < one["seconds"] <= 48 * one["seconds_per_round"]
        assert f"benchmarking tier {one['tier']}: about 10 s once the model is made" in outcome.err
    assert "here" not in estimated(run_dir / "config.toml")
    text = invoke("estimate", "--config", run_dir / "config.toml", "--device", "cpu").out
    assert "like this machine" in text
    assert "sequences a minute need" in text
    refused = invoke(
        "estimate", "--config", run_dir / "config.toml", "--device", "cuda:0,1", "--json"
    )
    assert refused.code in (1, 2)
    assert "device" in refused.err


def test_round_pace_equals_its_slowest_limit() -> None:
    rules = builders.config(global_batch_size_end=10, min_round_time=2, total_steps=100)
    assert pace(rules, 3, 1000, 1, 60) == Pace(1, 60, 4.0, pytest.approx(1000 / 3))
    # no round ends before its minimum time
    assert pace(rules, 10, 1000, 0, 120) == Pace(0, 120, 2.0, 200.0)
