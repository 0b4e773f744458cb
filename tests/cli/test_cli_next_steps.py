"""Tests of the `next:` line: its commands exist, and only people get it, not scripts."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.cli.main import INDEX, SOLANA
from aftermath.cli.next_steps import NEXT, QUIET, completed, line, say_next
from aftermath.cli.run_control import case_of
from aftermath.rules.state import RunState
from aftermath.train.tier import AUTO_TIER
from cli.cli_runs import Shell, invoke
from rules import builders

MADE = {"model export": {"checkpoint"}, "update-config": {"total_steps"}}
"""The values that a command adds to its options for its next step (`Result.made`), by command."""


@pytest.mark.parametrize(("name", "case"), NEXT)
def test_next_step_commands_and_options_exist(name: str, case: str) -> None:
    """Check also that words in braces are options of the command before."""
    assert name in INDEX
    own = {str(option.name) for option in SOLANA.load(name).params} | MADE.get(name, set())
    assert set(re.findall(r"{(\w+)}", NEXT[name, case])) <= own
    words = shlex.split(NEXT[name, case])
    assert not any(word.isupper() for word in words), "a placeholder cannot be copied"
    follows = SOLANA.command_of(words)
    assert follows is not None
    command = SOLANA.load(follows)
    options = [word for word in words[len(follows.split()) :] if word.startswith("-")]
    assert set(options) <= {flag for option in command.params for flag in option.opts}
    required = [option for option in command.params if option.required]
    assert {option.opts[0] for option in required if option.param_type_name == "option"} <= set(
        options
    )


def test_next_step_line_is_quoted_for_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "rpc": "http://x:1",
        "wallet_private_key_path": Path("my wallet.json"),
        "run_id": "a b",
    }
    assert line(NEXT["rewind", ""], options) == (
        "aftermath-solana set-paused --run-id 'a b' resume --rpc http://x:1 -w 'my wallet.json'"
    )
    assert line(NEXT["set-paused", ""], options) == (
        "aftermath-solana watch --run-id 'a b' --rpc http://x:1"
    )
    monkeypatch.setenv("RPC", "http://x:1")
    assert line(NEXT["set-paused", ""], options) == "aftermath-solana watch --run-id 'a b'"


def test_provider_commands_print_next_steps(tmp_path: Path) -> None:
    wallet = tmp_path / "wallet.json"
    model = tmp_path / "model"
    outcome = invoke("show-identity", "--create", "-w", wallet)
    assert f"next: aftermath-solana config set wallet {wallet}\n" in outcome.err
    assert "next:" not in invoke("show-identity", "-w", wallet).err
    written = invoke(
        "model", "init", "--out", model, "--hidden", 32, "--layers", 1, "--intermediate", 64
    )
    assert f"next: aftermath-solana model inspect --model {model}\n" in written.err
    options = {"run_id": "demo", "matformer_tier": 1, "rpc": "http://x:1"}
    assert line(NEXT["predownload", ""], options) == (
        "aftermath-solana train --run-id demo --matformer-tier 1 --rpc http://x:1"
    )


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (
            {"matformer_tier": 0},
            "--matformer-tier 0 -w w.json --checkpoint-dir runs/demo/checkpoints",
        ),
        (
            {"matformer_tier": AUTO_TIER},
            "--matformer-tier auto -w w.json --checkpoint-dir runs/demo/checkpoints",
        ),
        (
            {"matformer_tier": 0, "run_id": "../a b"},
            "-w w.json --checkpoint-dir runs/_a_b/checkpoints",
        ),
        (
            {"owner": "KEY", "max_bond": 0, "device": "auto", "data_path": None},
            "-w w.json --owner KEY",
        ),
        (
            {"data_path": Path("a b"), "allow_private_network": True},
            "-w w.json --data-path 'a b' --allow-private-network",
        ),
        (
            {"max_bond": 7, "device": "cpu", "authorizer": "A"},
            "-w w.json --authorizer A --max-bond 7 --device cpu",
        ),
    ],
)
def test_next_train_command_keeps_model_and_options(
    values: dict[str, object], options: str
) -> None:
    common_options = {"run_id": "demo", "matformer_tier": 1, "address": "w.json"}
    command = line(NEXT["can-join", "file"], common_options | values)
    assert command.endswith(options)
    words = shlex.split(command)[2:]
    flags = {flag for option in SOLANA.load("train").params for flag in option.opts}
    assert {word for word in words if word.startswith("-")} <= flags


@pytest.mark.parametrize("where", [[], ["--out", "other place"]], ids=["default", "elsewhere"])
def test_next_command_of_export_runs_as_printed(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: list[str]
) -> None:
    shutil.copytree(run_dir / "model", tmp_path / "my model")
    monkeypatch.chdir(tmp_path)
    outcome = invoke("model", "export", "--src", "my model", "--tiers", "1", *where)
    command = re.search(r"next: aftermath-solana (.*)", outcome.err)
    assert command is not None, outcome.err
    assert invoke(*shlex.split(command[1])).code == 0


def test_next_steps_are_printed_for_people_not_scripts(
    owner: Shell, run_id: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common_options = ("--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id)
    where = f"--rpc {owner.rpc} -w {owner.wallet}"
    outcome = invoke("create-run", *common_options, "--join-authority", owner.wallet)
    assert "next:" not in outcome.err
    update = ("update-config", *common_options, "--config-path", run_dir / "config.toml")
    assert "next:" not in invoke(*update, "--dry-run").err
    assert (
        f"next: aftermath-solana set-paused --run-id {run_id} resume {where}\n"
        in invoke(*update).err
    )
    monkeypatch.setenv(QUIET, "1")
    assert "next:" not in invoke(*update).err
    monkeypatch.delenv(QUIET)
    assert "next:" not in owner("set-paused", "--run-id", run_id, "resume").err
    failed = invoke("set-paused", *common_options, "resume")
    assert failed.code == 1
    assert (
        f"error: run {run_id} is already running\nfix: Follow it: aftermath-solana watch --run-id"
        in failed.err
    )
    assert "next:" not in failed.err
    paused = invoke("set-paused", *common_options, "pause").err
    assert f"next: aftermath-solana set-paused --run-id {run_id} resume {where}\n" in paused


def test_next_step_that_needs_other_wallet_is_not_printed(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    create_wallet(tmp_path / "grantor.json")
    common_options = ("--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id)
    assert (
        invoke("create-run", *common_options, "--join-authority", tmp_path / "grantor.json").code
        == 0
    )
    stderr = invoke("update-config", *common_options, "--config-path", run_dir / "config.toml").err
    assert "next:" not in stderr
    options = {"run_id": "demo", "matformer_tier": AUTO_TIER, "address": "my wallet.json"}
    assert "--matformer-tier auto -w 'my wallet.json' --checkpoint-dir" in line(
        NEXT["can-join", "file"], options
    )


def test_next_step_of_resumed_run_is_train() -> None:
    options = {"run_id": "a b", "wallet_private_key_path": Path("owner.json")}
    for command in (("set-paused", "resumed"), ("reopen", "")):
        assert line(NEXT[command], options) == (
            "aftermath-solana train --run-id 'a b' --matformer-tier 0"
            " --checkpoint-dir runs/a_b/checkpoints -w owner.json"
        )


def test_next_step_of_pausing_run_is_watch() -> None:
    """Only a paused run can be changed."""
    assert "resume" in NEXT["set-paused", case_of(builders.run(RunState.PAUSED))]
    for state in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.COOLDOWN):
        assert "train" in NEXT["set-paused", case_of(builders.run(state))]
        pausing = builders.run(state, pending_pause=True)
        assert "watch" in NEXT["set-paused", case_of(pausing)]
        assert "tick" in NEXT["set-paused", case_of(pausing, is_stalled=True)]


GIVEN = {
    "rpc": "http://x:1",
    "ws_rpc": "ws://x:9",
    "wallet_private_key_path": Path("my wallet.json"),
    "run_id": "r",
}
CLUSTER = "--rpc http://x:1 --ws-rpc ws://x:9"
WHERE = f"{CLUSTER} -w 'my wallet.json'"
SUGGESTED = {
    "Pause: aftermath-solana set-paused --run-id r pause": "Pause: aftermath-solana set-paused --run-id r pause WHERE",
    "Ask its owner: aftermath-solana kick --run-id r": "Ask its owner: aftermath-solana kick --run-id r CLUSTER",
    "aftermath-solana create-run -w A; then aftermath-solana tick": (
        "aftermath-solana create-run -w A CLUSTER; then aftermath-solana tick WHERE"
    ),
    "See aftermath-solana list-runs.": "See aftermath-solana list-runs CLUSTER.",
    "aftermath-solana list-runs shows them": "aftermath-solana list-runs CLUSTER shows them",
    "(aftermath-solana set-paused --run-id 'a b' pause), or resume": (
        "(aftermath-solana set-paused --run-id 'a b' pause WHERE), or resume"
    ),
    "aftermath-solana close-run --run-id r --yes ends it": "aftermath-solana close-run --run-id r --yes WHERE ends it",
    "aftermath-solana model init creates one": "aftermath-solana model init creates one",
    "aftermath-solana localnet, or aftermath-solana --help": "aftermath-solana localnet, or aftermath-solana --help",
    "aftermath-solana tick --help explains it": "aftermath-solana tick --help explains it",
    "aftermath-solana nonsense --rpc": "aftermath-solana nonsense --rpc",
}


@pytest.mark.parametrize("text", SUGGESTED)
def test_suggested_command_names_cluster_and_wallet(text: str) -> None:
    expected = SUGGESTED[text].replace("CLUSTER", CLUSTER).replace("WHERE", WHERE)
    assert completed(text, GIVEN) == expected
    assert completed(expected, GIVEN) == expected


def test_suggested_commands_all_name_given_wallet() -> None:
    options = {"wallet_private_key_path": Path("owner.json")}
    text = "aftermath-solana tick --run-id r, and aftermath-solana tick --run-id r. Or wait"
    tick = "aftermath-solana tick --run-id r -w owner.json"
    assert completed(text, options) == f"{tick}, and {tick}. Or wait"
    assert completed(f"Ask its owner: {text}", options) == f"Ask its owner: {text}"


def test_suggested_command_hides_rpc_api_key() -> None:
    options = {"rpc": "https://me:SECRET@x.example/SECRET?api-key=SECRET"}
    text = completed("See aftermath-solana list-runs", options)
    assert text == "See aftermath-solana list-runs --rpc RPC_ADDRESS"


@pytest.mark.parametrize(
    "options",
    [{"rpc": "https://x.example/?api-key=SECRET"}, {"run_id": None}],
    ids=["key", "value"],
)
def test_next_step_with_unknown_value_is_not_printed(
    capsys: pytest.CaptureFixture[str], options: dict[str, str | None]
) -> None:
    say_next("reopen", "", {"run_id": "r"})
    assert "next: aftermath-solana train --run-id r" in capsys.readouterr().err
    say_next("reopen", "", {"run_id": "r"} | options)
    assert not capsys.readouterr().err


def test_suggested_command_omits_stored_options(
    owner: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AFTERMATH_PROFILE", str(tmp_path / "profile.toml"))
    for name, value in (("rpc", "http://x:1"), ("wallet", owner.wallet)):
        assert invoke("config", "set", name, value).code == 0
    options = {"rpc": "http://x:1", "wallet_private_key_path": owner.wallet}
    assert completed("aftermath-solana tick", options) == "aftermath-solana tick"
    (tmp_path / "profile.toml").write_text("[")
    assert "--rpc http://x:1" in completed("aftermath-solana tick", options)


def test_fix_of_refused_change_works_when_copied(owner: Shell, run_id: str, run_dir: Path) -> None:
    common_options = ("--rpc", owner.rpc, "-w", owner.wallet, "--run-id", run_id)
    assert invoke("create-run", *common_options).code == 0
    update = ("update-config", *common_options, "--config-path", run_dir / "config.toml")
    assert invoke(*update).code == 0
    assert invoke("set-paused", *common_options, "resume").code == 0
    refused = invoke(*update, "--restart-from-step", "1")
    command = re.search(r"aftermath-solana (set-paused .*)", refused.err)
    assert command is not None, refused.err
    assert invoke(*shlex.split(command[1])).code == 0
    assert invoke(*update, "--restart-from-step", "1").code == 0
