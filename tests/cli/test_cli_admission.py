"""Tests that `can-join` gives the same answers as `train`, and that `list-runs` counts the
members.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath import __version__
from aftermath.base.errors import Unsuitable
from aftermath.base.files import cache_directory
from aftermath.chain import funding
from aftermath.chain.accounts import balance
from aftermath.chain.addresses import run_addresses
from aftermath.chain.admission import FEES_IN_HAND
from aftermath.chain.endpoints import endpoint
from aftermath.chain.member import SolanaMember
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import Wallet, load_wallet
from aftermath.coordinator.errors import Refused
from aftermath.localnet.runtime import minimum_balance
from aftermath.programs import COORDINATOR_ID
from aftermath.rules.state import RunState
from aftermath.train.admission import check_admission
from aftermath.train.connection import member_of, on_solana
from aftermath.train.lock import only_process
from aftermath.train.settings import TrainSettings
from chain.faults import answer_error, meddling
from cli.cli_lone_member import QUICK
from cli.cli_runs import Shell, invoke, train
from cli.conftest import new_user
from cli.test_cli_authorizations import public, verdict
from cli.test_cli_bad_input import ELSEWHERE

OTHER = "9.9.9"

FAR = ("--rpc-2", ELSEWHERE, "--data-root", "/")
"""A node on another machine. Members then open the run's local paths only below --data-root."""


@pytest.fixture
def waiting(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> Shell:
    """Return the owner of a run that starts and continues with a single member."""
    text = (run_dir / "config.toml").read_text()
    for usual, quick in QUICK.items():
        text = text.replace(usual, quick, 1)
    (tmp_path / "config.toml").write_text(
        text.replace("init_min_clients = 1", "init_min_clients = 2")
    )
    assert owner("create-run", "--run-id", run_id).code == 0
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", tmp_path / "config.toml").code
        == 0
    )
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    return owner


async def airdrop(rpc: str, key: Pubkey, lamports: int) -> None:
    async with RpcPool([endpoint(rpc)]) as pool:
        await pool.call(lambda node: node.request_airdrop(key, lamports))
        while not await balance(pool, key):
            await asyncio.sleep(0.05)


def test_can_join_wrong_client_version_is_refused_as_by_train(waiting: Shell, run_id: str) -> None:
    assert verdict(waiting, run_id, waiting.wallet) == []
    assert waiting("set-paused", "--run-id", run_id, "pause").code == 0
    assert waiting("update-config", "--run-id", run_id, "--client-version", OTHER).code == 0
    assert waiting("set-paused", "--run-id", run_id, "resume").code == 0
    (reason,) = verdict(waiting, run_id, waiting.wallet)
    command = ("can-join", "--run-id", run_id, "--address", waiting.wallet)
    assert waiting(*command).code == 10
    assert OTHER in reason
    assert __version__ in reason
    refused = train(waiting, "--run-id", run_id, "--logs", "json")
    assert refused.code == 10
    # the answer comes before the slow checks, which take minutes
    assert "measuring" not in refused.out
    assert f"error: {reason}\n" in refused.err
    assert f"update-config --run-id {run_id} --client-version {__version__}" in refused.err
    assert waiting("set-paused", "--run-id", run_id, "pause").code == 0
    assert waiting("update-config", "--run-id", run_id, "--client-version", __version__).code == 0
    assert waiting("set-paused", "--run-id", run_id, "resume").code == 0
    assert verdict(waiting, run_id, waiting.wallet) == []


def test_can_join_wallet_already_training_here_is_refused(waiting: Shell, run_id: str) -> None:
    cluster = asyncio.run(genesis(waiting.rpc))
    place = {
        "cluster": cluster,
        "program": str(COORDINATOR_ID),
        "run_id": run_id,
        "wallet": public(waiting.wallet),
    }
    with only_process(cache_directory("locks"), **place):
        assert verdict(waiting, run_id, waiting.wallet) == [
            f"another process on this machine already takes part in run {run_id} with this wallet"
        ]
        rehearsed = train(waiting, "--run-id", run_id, "--dry-run")
        assert rehearsed.code == 1
        assert "another process on this machine already takes part in" in rehearsed.err
    assert verdict(waiting, run_id, waiting.wallet) == []


def test_join_run_id_of_another_owner_is_refused(
    waiting: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    def admit(owner: str | None = None) -> None:
        settings = TrainSettings(
            run_id=run_id,
            rpc=waiting.rpc,
            wallet_private_key_path=Path(waiting.wallet),
            owner=owner,
        )
        reach = on_solana(settings)
        asyncio.run(check_admission(settings, reach.pool, member_of(settings, reach)))

    admit()
    assert waiting("set-paused", "--run-id", run_id, "pause").code == 0
    assert waiting("close-run", "--run-id", run_id, "--yes").code == 0
    (tmp_path / "mallory").mkdir()
    mallory = new_user(waiting.rpc, tmp_path / "mallory")
    assert mallory("create-run", "--run-id", run_id).code == 0
    assert (
        mallory("update-config", "--run-id", run_id, "--config-path", tmp_path / "config.toml").code
        == 0
    )
    assert mallory("set-paused", "--run-id", run_id, "resume").code == 0
    with pytest.raises(Unsuitable, match="another owner") as refused:
        admit()
    assert str(refused.value.fix).endswith(f"--owner {public(mallory.wallet)}")
    (reason,) = verdict(waiting, run_id, waiting.wallet)
    assert reason == refused.value.message
    outcome = waiting("can-join", "--run-id", run_id, "--address", waiting.wallet)
    assert json.loads(outcome.out)["fixes"] == [refused.value.fix]
    plain_outcome = invoke(
        "can-join", "--rpc", waiting.rpc, "--run-id", run_id, "--address", waiting.wallet
    )
    assert f"fix: {refused.value.fix}\n" in plain_outcome.out
    assert (
        "belongs to"
        in verdict(waiting, run_id, waiting.wallet, "--owner", public(waiting.wallet))[0]
    )
    admit(public(mallory.wallet))
    assert verdict(waiting, run_id, waiting.wallet) == []


async def genesis(rpc: str) -> str:
    async with RpcPool([endpoint(rpc)]) as pool:
        return await pool.genesis()


def no_such_tier(place: Path) -> tuple[str, ...]:
    return "--matformer-tier", "3"


def no_such_device(place: Path) -> tuple[str, ...]:
    return "--device", "mps"


def no_data(place: Path) -> tuple[str, ...]:
    (place / "tokens").rename(place / "elsewhere")
    return ()


def other_data(place: Path) -> tuple[str, ...]:
    (file,) = (place / "tokens").glob("*.bin")
    data = file.read_bytes()
    file.write_bytes(data[2:] + data[:2])
    return ()


def other_model(place: Path) -> tuple[str, ...]:
    document = json.loads((place / "model/config.json").read_text())
    (place / "model/config.json").write_text(json.dumps(document | {"num_hidden_layers": 1}))
    return ()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_such_tier, "has tiers 0 to 2"),
        (no_such_device, "this machine has no MPS device"),
        (no_data, "there is no token data at"),
        (other_data, "is not this run's (hash "),
        (other_model, "its schema is"),
    ],
    ids=["tier", "device", "data", "other data", "model"],
)
def test_can_join_checks_same_requirements_as_train(
    owner: Shell,
    run_id: str,
    run_dir: Path,
    tmp_path: Path,
    spoil: Callable[[Path], tuple[str, ...]],
    message: str,
) -> None:
    place = tmp_path / "here"
    shutil.copytree(run_dir, place)
    config = place / "config.toml"
    config.write_text(config.read_text().replace(str(run_dir), str(place)))
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    assert verdict(owner, run_id, owner.wallet, "--matformer-tier", "2", "--device", "cpu") == []
    more = spoil(place)
    (reason,) = verdict(owner, run_id, owner.wallet, *more)
    assert message in reason
    refused = train(owner, "--run-id", run_id, *more, "--logs", "json")
    assert f"error: {reason}\n" in refused.err
    assert (
        owner("can-join", "--run-id", run_id, "--address", owner.wallet, "--device", "gpu").code
        == 2
    )


@pytest.mark.slow
def test_can_join_tier_beyond_memory_is_refused_as_by_train(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    """A run may begin without stored weights, so this large model costs its owner nothing."""
    place = tmp_path / "here"
    shutil.copytree(run_dir, place)
    document = json.loads((place / "model/config.json").read_text())
    sizes = {
        "hidden_size": 16_384,
        "intermediate_size": 65_536,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
    }
    sizes |= {"head_dim": 128, "matformer_base_intermediate_size": 65_536}
    (place / "model/config.json").write_text(json.dumps(document | sizes))
    config = place / "config.toml"
    text = config.read_text().replace(str(run_dir), str(place))
    config.write_text(
        text.replace("[model.LLM.checkpoint]\nLocal =", "[model.LLM.checkpoint.Dummy]\nrepo_id =")
    )
    assert owner("create-run", "--run-id", run_id).code == 0
    configured = owner("update-config", "--run-id", run_id, "--config-path", config)
    assert configured.code == 0, configured.err
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    (reason,) = verdict(owner, run_id, owner.wallet, "--matformer-tier", "0", "--device", "cpu")
    assert reason.startswith("tier 0 takes ")
    assert "takes at least" in reason
    refused = train(
        owner, "--run-id", run_id, "--matformer-tier", "0", "--device", "cpu", "--logs", "json"
    )
    assert "error: tier 0 takes " in refused.err
    assert refused.code != 0


def test_can_join_unreachable_data_server_is_a_warning(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    text = (run_dir / "config.toml").read_text()
    config = tmp_path / "config.toml"
    config.write_text(
        text.replace(f"Local = {json.dumps(str(run_dir / 'tokens'))}", 'Server = "127.0.0.1:9"')
    )
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    outcome = owner("can-join", "--run-id", run_id, "--address", owner.wallet)
    (warning,) = outcome.data["warnings"]
    assert "127.0.0.1:9" in warning
    assert warning.endswith("train would wait for it")
    assert f"warning: {warning}" in outcome.err


@pytest.mark.parametrize("lamports", [0, FEES_IN_HAND - 1])
def test_can_join_wallet_below_train_minimum_is_refused(
    waiting: Shell, run_id: str, tmp_path: Path, lamports: int
) -> None:
    """The cluster gives no funds, because one of its nodes is not on this machine."""
    poor = Shell(waiting.rpc, tmp_path / "poor.json")
    (tmp_path / "poor.json").write_text(Keypair().to_json())
    (tmp_path / "poor.json").chmod(0o600)
    if lamports:
        asyncio.run(airdrop(waiting.rpc, load_wallet(poor.wallet).pubkey, lamports))
    (reason,) = verdict(poor, run_id, poor.wallet, *FAR)
    assert f"{load_wallet(poor.wallet).pubkey} holds" in reason
    assert "needs 0.005 SOL" in reason
    if lamports:
        refused = train(poor, "--run-id", run_id, *FAR)
        assert f"error: {reason}\n" in refused.err
        asyncio.run(airdrop(waiting.rpc, load_wallet(poor.wallet).pubkey, 10**6))
    else:
        assert verdict(poor, run_id, poor.wallet) == []  # a local network gives the missing amount
    assert verdict(poor, run_id, poor.wallet, *FAR) == []


def test_can_join_silent_faucet_is_refused(
    waiting: Shell, run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An RPC address of this machine may be a tunnel to any node, not only to a local network."""
    monkeypatch.setattr(funding, "ASK_PATIENCE", 0.1)
    poor = tmp_path / "poor.json"
    poor.write_text(Keypair().to_json())
    poor.chmod(0o600)

    async def refuse(body: dict[str, Any]) -> web.StreamResponse | None:
        return (
            answer_error(body, -32603, "no faucet") if body["method"] == "requestAirdrop" else None
        )

    async def refusals(lamports: int) -> list[str]:
        if lamports:
            await airdrop(waiting.rpc, load_wallet(poor).pubkey, lamports)
        async with meddling(waiting.rpc, refuse) as rpc:
            return await asyncio.to_thread(verdict, Shell(rpc, poor), run_id, poor)

    (reason,) = asyncio.run(refusals(0))
    assert (
        f"wallet {load_wallet(poor).pubkey} holds 0 SOL but needs 0.005 SOL: 0.005 SOL is missing"
        in reason
    )
    assert asyncio.run(refusals(FEES_IN_HAND)) == []


def test_create_run_requests_total_funds_once(owner: Shell, run_id: str, run_dir: Path) -> None:
    """The sum also pays for the authorization for everybody and for the owner's next commands."""
    own = load_wallet(owner.wallet).pubkey
    elsewhere = ("--run-id", run_id, *FAR[:2])

    def needed() -> int:
        error = owner("create-run", *elsewhere).error["error"]
        return round(float(error.split("needs ")[1].split(" SOL")[0]) * 10**9)

    whole = needed()
    asyncio.run(airdrop(owner.rpc, own, whole - 10**6))
    assert needed() == whole
    assert owner("json-dump-run", "--run-id", run_id).code == 1
    asyncio.run(airdrop(owner.rpc, own, 10**6))
    data = owner("create-run", *elsewhere).data
    assert 0 <= whole - data["lamports"] - minimum_balance(0) < 500_000
    for line in (
        ("update-config", "--config-path", run_dir / "config.toml"),
        ("set-paused", "resume"),
        ("set-paused", "pause"),
        ("update-config", "--name", "Another"),
        ("set-paused", "resume"),
        ("set-paused", "pause"),
        ("close-run", "--yes"),
    ):
        outcome = owner(line[0], *elsewhere, *line[1:])
        assert outcome.code == 0, outcome.err


def test_list_runs_counts_waiting_and_active_members(waiting: Shell, run_id: str) -> None:
    """The list counts wallets that wait for an epoch, and in an epoch those that have not left."""

    def listed() -> int:
        (row,) = [row for row in waiting("list-runs").data if row["run_id"] == run_id]
        return int(row["members"])

    async def life() -> None:
        async with RpcPool([endpoint(waiting.rpc)]) as pool, contextlib.AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(
                    SolanaMember(pool, Wallet(Keypair()), run_id, client_version=__version__)
                )
                for _ in range(2)
            ]
            for count, member in enumerate(members):
                assert await asyncio.to_thread(listed) == count
                digest = (await member.view()).model.schema_hash
                await member.join(
                    p2p=member.wallet, tier=0, weight=1, schema_hash=digest, stateless=True
                )
            assert await asyncio.to_thread(listed) == 2
            while (await members[0].view(fresh=True)).run.state is not RunState.WARMUP:
                with contextlib.suppress(Refused):
                    await members[0].tick()
                await asyncio.sleep(0.05)
            assert await asyncio.to_thread(listed) == 2
            await members[1].leave()
            assert (await members[0].view(fresh=True)).run.current.clients == 2
            assert await asyncio.to_thread(listed) == 1

    asyncio.run(life())


def test_list_runs_shows_interrupted_creation(owner: Shell, run_id: str) -> None:
    from aftermath.cli.connection import sign_in
    from aftermath.cli.options import SigningOptions

    async def first_step_only() -> None:
        async with sign_in(
            SigningOptions(rpc=owner.rpc, wallet_private_key_path=owner.wallet)
        ) as chain:
            await chain.sender.send(chain.coordinator.creation(run_id)[:1])

    asyncio.run(first_step_only())
    assert [row["members"] for row in owner("list-runs").data if row["run_id"] == run_id] == [0]


def test_can_join_auto_tier_names_fitting_tier(waiting: Shell, run_id: str) -> None:
    command = (
        "can-join",
        "--run-id",
        run_id,
        "--address",
        waiting.wallet,
        "--device",
        "cpu",
        "--matformer-tier",
        "auto",
    )
    data = waiting(*command).data
    assert (data["can_join"], data["tier"]) == (True, 0)
    assert "it fits (" in data["why_tier"]
    # not a device of this machine, so train ends once the tier is chosen
    elsewhere = ("--bind-p2p-interface", "192.0.2.1")
    ended = train(waiting, "--run-id", run_id, "--matformer-tier", "auto", *elsewhere)
    assert ended.code == 1
    assert "--matformer-tier auto: tier 0; it fits" in ended.err
    assert "cannot listen on UDP 192.0.2.1" in ended.err
    assert ", tier 0, wallet " in ended.out


def test_create_run_accepts_prefunded_addresses(owner: Shell, run_id: str) -> None:
    places = run_addresses(Pubkey.from_string(COORDINATOR_ID), run_id)
    for place in (places.run, places.members, places.witnesses):
        asyncio.run(airdrop(owner.rpc, place, 10**6))
    outcome = owner("create-run", "--run-id", run_id, "--name", "Test")
    assert outcome.code == 0, outcome.err
