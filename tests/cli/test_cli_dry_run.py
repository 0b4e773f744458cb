"""Tests of `--dry-run` for every command that signs, on a real local network: it prints what would
happen and changes nothing.
"""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.accounts import balance
from aftermath.chain.endpoints import endpoint
from aftermath.chain.rpc import RpcPool
from aftermath.chain.wallet import create_wallet, load_wallet
from aftermath.cli.index import Index
from aftermath.cli.main import INDEX, SOLANA
from aftermath.localnet.runtime import minimum_balance
from aftermath.server.index import CENTRALIZED
from cli.cli_lone_member import join, leave
from cli.cli_runs import Outcome, Shell, invoke
from cli.test_cli_bad_input import ELSEWHERE as NOT_LOCAL

SIGNING = {
    "sign_in",
    "SigningOptions",
    "WalletOptions",
    "load_wallet",
    "create_wallet",
    "Sender",
    "CoordinatorClient",
}
"""What a command names if it has a wallet at hand."""
SENDS_NOTHING = {"show-identity", "doctor", "estimate", "can-join", "status"}
OTHERWISE = {"client train": "a server asks for no rent, bond or fee"}
"""Commands that have a wallet at hand and no dry run, and why."""
Ready = Callable[[Shell, str, Path], tuple[Any, ...]]


def names_in(index: Index, name: str) -> set[str]:
    """Return the names that a command's function uses, directly or through functions and classes of
    its module.
    """
    identifier = name.replace("-", "_").replace(" ", "_")
    spec = find_spec(f"{index.package}.{index.entries[name].module or identifier}")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    parts = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    names = {identifier}
    waiting = [identifier]
    while waiting:
        part = parts.pop(waiting.pop())
        found_names = {
            alias.name
            for node in ast.walk(part)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        found_names |= {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
        waiting += [one for one in found_names - names if one in parts]
        names |= found_names
    return names


def has_dry_run(index: Index, name: str) -> bool:
    return any("--dry-run" in option.opts for option in index.load(name).params)


@pytest.mark.parametrize("index", [SOLANA, CENTRALIZED], ids=lambda index: index.name)
def test_signing_commands_all_have_dry_run(index: Index) -> None:
    """A new command gets it with `SigningOptions`, and needs an entry in the table below."""
    for name in index.entries:
        wallet = SIGNING & names_in(index, name)
        if wallet and name not in SENDS_NOTHING | set(OTHERWISE):
            assert has_dry_run(index, name), (
                f"{name} has a wallet at hand ({wallet}) and no --dry-run"
            )


def created(shell: Shell, run_id: str, run_dir: Path) -> tuple[Any, ...]:
    assert shell("create-run", "--run-id", run_id, "--name", "Test").code == 0
    return ("--run-id", run_id)


def configured(shell: Shell, run_id: str, run_dir: Path) -> tuple[Any, ...]:
    run_options = created(shell, run_id, run_dir)
    text = (
        (run_dir / "config.toml")
        .read_text()
        .replace("init_min_clients = 1", "init_min_clients = 2")
    )
    config = shell.wallet.with_name("config.toml")
    config.write_text(text)
    assert shell("update-config", *run_options, "--config-path", config).code == 0
    return run_options


def left(shell: Shell, run_id: str, run_dir: Path) -> tuple[Any, ...]:
    """Return a wallet that has joined a run and left it."""
    run_options = configured(shell, run_id, run_dir)
    assert shell("set-paused", *run_options, "resume").code == 0
    asyncio.run(join(shell, run_id, 0))
    asyncio.run(leave(shell, run_id))
    return run_options


def stranger(shell: Shell) -> Path:
    path = shell.wallet.with_name("stranger.json")
    return path if path.exists() else (create_wallet(path), path)[1]


def granted(shell: Shell) -> tuple[Any, ...]:
    """Return a stranger that the shell's wallet has authorized."""
    assert shell("join-authorization-create", "--authorizer", stranger(shell)).code == 0
    return ("--authorizer", stranger(shell))


def authorized(shell: Shell) -> tuple[Any, ...]:
    """Return the shell's wallet, which a stranger has authorized."""
    assert (
        Shell(shell.rpc, stranger(shell))(
            "join-authorization-create", "--authorizer", shell.wallet
        ).code
        == 0
    )
    return ("--join-authority", stranger(shell), "--delegates-added", stranger(shell))


LINES: dict[str, Ready] = {
    "create-run": lambda shell, run_id, run_dir: ("--run-id", run_id, "--name", "Test"),
    "update-config": lambda shell, run_id, run_dir: (
        *created(shell, run_id, run_dir),
        "--config-path",
        run_dir / "config.toml",
    ),
    "set-paused": lambda shell, run_id, run_dir: (*configured(shell, run_id, run_dir), "resume"),
    "close-run": lambda shell, run_id, run_dir: (*created(shell, run_id, run_dir), "--yes"),
    "withdraw": left,
    "kick": lambda shell, run_id, run_dir: (
        *configured(shell, run_id, run_dir),
        "--bar",
        "--wallet",
        stranger(shell),
    ),
    "set-future-epoch-rates": lambda shell, run_id, run_dir: (
        *created(shell, run_id, run_dir),
        "--earning-rate-total-shared",
        9,
    ),
    "join-authorization-create": lambda shell, run_id, run_dir: ("--authorizer", stranger(shell)),
    "join-authorization-delegate": lambda shell, run_id, run_dir: authorized(shell),
    "join-authorization-delete": lambda shell, run_id, run_dir: granted(shell),
}
"""What makes a command ready to be done, and its options. `ELSEWHERE` has the others."""
ELSEWHERE = {"checkpoint", "rewind", "reopen", "deploy", "tick", "train"}


def lamports(shell: Shell) -> int:
    async def request() -> int:
        async with RpcPool([endpoint(shell.rpc)]) as pool:
            return await balance(pool, load_wallet(shell.wallet).pubkey)

    return asyncio.run(request())


async def airdrop(shell: Shell) -> None:
    """Fund the wallet, because a command that is refused for another reason first requests
    funds.
    """
    async with RpcPool([endpoint(shell.rpc)]) as pool:
        key = load_wallet(shell.wallet).pubkey
        await pool.call(lambda node: node.request_airdrop(key, 5 * 10**9))
        while not await balance(pool, key):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("name", LINES)
def test_dry_run_predicts_costs_to_the_lamport(
    name: str, owner: Shell, run_id: str, run_dir: Path
) -> None:
    asyncio.run(airdrop(owner))
    line = LINES[name](owner, run_id, run_dir)
    before = lamports(owner)
    slots = invoke("json-dump-run", "--rpc", owner.rpc, "--run-id", run_id).out
    data = owner(name, *line, "--dry-run").data
    assert (
        lamports(owner),
        invoke("json-dump-run", "--rpc", owner.rpc, "--run-id", run_id).out,
    ) == (before, slots)
    assert data["dry_run"] is True
    assert data["refusal"] is None
    assert data["transactions"][0]["outcome"] == "accepted"
    assert {one["outcome"] for one in data["transactions"]} <= {"accepted", "open"}
    assert data["total_lamports"] == data["rent_lamports"] + data["fees_lamports"]
    assert data["rent_lamports"] == sum(one["rent_lamports"] for one in data["accounts"])
    outcome = owner(name, *line)
    assert outcome.code == 0, outcome.err
    assert before - lamports(owner) == data["total_lamports"] - data["returned_lamports"]


def test_dry_run_commands_all_have_a_test() -> None:
    assert {name for name in INDEX if has_dry_run(SOLANA, name)} == set(LINES) | ELSEWHERE


def test_dry_run_names_instructions_and_accounts(owner: Shell, run_id: str) -> None:
    line = ("create-run", "--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id, "--dry-run")
    outcome = invoke(*line)
    assert outcome.code == 0, outcome.err
    for words in (
        "nothing was sent",
        "coordinator.init_run",
        "coordinator.grow x ",
        "authorizer.create",
    ):
        assert words in outcome.out
    data = invoke(*line, "--json").data
    calls = [call for one in data["transactions"] for call in one["instructions"]]
    assert calls[0] == "coordinator.init_run"
    assert {call.partition(".")[0] for call in calls} == {"coordinator", "authorizer"}
    assert len(data["accounts"]) == 5
    assert all(one["rent_lamports"] == minimum_balance(one["bytes"]) for one in data["accounts"])


def test_dry_run_of_empty_wallet_requests_no_funds(owner: Shell, run_id: str) -> None:
    """A local network could give the funds. Elsewhere the dry run names the missing sum."""
    data = owner("create-run", "--run-id", run_id, "--dry-run").data
    assert (data["held_lamports"], lamports(owner)) == (0, 0)
    assert data["needed_lamports"] > data["total_lamports"] > 600_000_000
    assert [one["outcome"] for one in data["transactions"]] == ["open"] * len(data["transactions"])
    line = ("create-run", "--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id, "--dry-run")
    text = " ".join(invoke(*line).out.split())
    lacks = f"{data['needed_lamports'] / 1e9:.9f}".rstrip("0")
    assert f"unknown until the wallet has the missing {lacks} SOL" in text
    assert f"it lacks {lacks} SOL" in text
    elsewhere = invoke(*line, "--rpc-2", NOT_LOCAL)
    assert elsewhere.code == 1
    assert re.search(r"would fail: the wallet lacks 0\.63\d+ SOL", " ".join(elsewhere.out.split()))
    assert "accepted" not in elsewhere.out
    refused = owner("create-run", "--run-id", run_id, "--dry-run", "--rpc-2", NOT_LOCAL).error
    assert refused["code"] == "insufficient-funds"
    assert "is missing" in refused["error"]
    assert lamports(owner) == 0


def test_dry_run_refusal_has_fix_and_exit_code(owner: Shell, run_id: str, run_dir: Path) -> None:
    run_options = created(owner, run_id, run_dir)
    refused = owner("set-paused", *run_options, "resume", "--dry-run")
    assert refused.error["code"] == owner("set-paused", *run_options, "resume").error["code"]
    assert f"update-config --run-id {run_id}" in refused.error["fix"]
    data = json.loads(refused.out)
    assert data["refusal"]["fix"] == refused.error["fix"]
    assert [one["outcome"] for one in data["transactions"]] == ["refused"]
    assert (
        "refused by the simulation"
        in person(owner, "set-paused", *run_options, "resume", "--dry-run").out
    )


def person(shell: Shell, name: str, *line: Any) -> Outcome:
    """Return the output of a command without --json."""
    return invoke(name, "--rpc", shell.rpc, "-w", shell.wallet, *line)


def test_dry_run_of_early_tick_ends(owner: Shell, run_id: str, run_dir: Path) -> None:
    """The dry run of tick does not loop."""
    run_options = configured(owner, run_id, run_dir)
    assert owner("set-paused", *run_options, "resume").code == 0
    assert owner("tick", *run_options, "--dry-run").error["code"] == "nothing-to-tick"


def test_dry_run_without_transaction_sends_nothing(owner: Shell) -> None:
    granted(owner)
    again = owner("join-authorization-create", "--authorizer", stranger(owner), "--dry-run").data
    assert (again["active"], again["signatures"]) == (True, [])


def test_dry_run_close_of_authorization_with_delegates_matches(owner: Shell) -> None:
    """The real command does what the dry run printed."""
    line = granted(owner)
    grantee = Shell(owner.rpc, stranger(owner))
    added = ("--join-authority", owner.wallet, "--delegates-added", owner.wallet)
    assert grantee("join-authorization-delegate", *added).code == 0
    planned = owner("join-authorization-delete", *line, "--dry-run").data["transactions"]
    assert [one["instructions"] for one in planned] == [["authorizer.grantor_update"]]
    assert owner("join-authorization-delete", *line).data["closed"] is False
    assert (
        owner("join-authorization-delete", *line, "--dry-run").error["code"] == "closed-too-early"
    )
