"""The recipes: a run set up and trained in by the two shell scripts, as `make` calls them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.localnet import validator_binary
from cli.cli_runs import CONSOLE, invoke
from cli.conftest import ROOT

FIRST_STEPS_SECONDS = 400  # a light model's first round on a machine that is busy with other tests
BINARY = validator_binary()  # looked for before a test has another home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout without anything made in it yet."""
    for name in ("scripts", "config", "keys"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


@pytest.fixture
def variables(rpc: str, run_id: str) -> dict[str, str]:
    """The environment: our console script, the test's own network and run."""
    path = f"{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "RPC": rpc, "RUN_ID": run_id, "OMP_NUM_THREADS": "1"}


def script(project: Path, name: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = ["sh", f"scripts/{name}", *arguments]
    return subprocess.run(line, cwd=project, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_light_recipe(project: Path, variables: dict[str, str], rpc: str, run_id: str) -> None:
    setup = script(project, "setup-run.sh", "localnet", "light", env=variables)
    assert setup.returncode == 0, setup.stderr
    assert "ready; join with" in setup.stdout
    again = script(project, "setup-run.sh", "localnet", "light", env=variables)
    assert again.returncode == 0, again.stderr
    assert "is set up already" in again.stdout

    line = ["sh", "scripts/start-training.sh", "localnet", "light", "--logs", "json", "--micro-batch-size", "1"]
    with subprocess.Popen(line, cwd=project, env=variables, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        timer = subprocess.Popen(
            ["sh", "-c", f"sleep {FIRST_STEPS_SECONDS}; kill -9 {member.pid}"], start_new_session=True
        )
        seen = []
        for text in member.stdout:
            seen.append(text)
            if '"kind":"trained"' in text:
                member.send_signal(signal.SIGINT)
        os.killpg(timer.pid, signal.SIGKILL)
        timer.wait()
        assert member.wait(30) == 0, seen
    assert any('"kind":"trained"' in text for text in seen)
    assert '"kind":"left"' in seen[-1]

    owner = project / "runs" / "wallets" / "owner.json"
    paused = invoke("set-paused", "--rpc", rpc, "--run-id", run_id, "-w", owner, "pause", "--json").data
    assert paused["run_id"] == run_id


@pytest.fixture
def validator() -> Iterator[str]:
    """A real solana-test-validator that knows neither program."""
    if BINARY is None:
        pytest.skip("solana-test-validator not found (PATH, AFTERMATH_VALIDATOR or ~/.cache/aftermath/bin)")
    line = [sys.executable, "-m", "aftermath.localnet", "--rpc-port", "0", "--engine", "validator"]
    environment = {**os.environ, "AFTERMATH_VALIDATOR": str(BINARY)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "rpc=" in said
        yield said.partition("rpc=")[2].split()[0]
        process.send_signal(signal.SIGINT)


@pytest.mark.slow
def test_the_recipes_of_devnet_from_the_airdrop_to_a_trained_round(
    project: Path, variables: dict[str, str], validator: str, tmp_path: Path
) -> None:
    create_wallet(tmp_path / "wallet.json")
    here = {key: value for key, value in variables.items() if key != "RPC"}
    here["WALLET_PRIVATE_KEY_PATH"] = str(tmp_path / "wallet.json")
    given = airdrop(project, validator, "--sol", "5", "--json", env=here)
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["lamports"] == 5_000_000_000
    setup = script(project, "setup-run.sh", validator, "light", env=here)
    assert setup.returncode == 0, setup.stderr
    assert "ready; join with" in setup.stdout
    line = ["sh", "scripts/start-training.sh", validator, "light", "--logs", "json", "--micro-batch-size", "1"]
    with subprocess.Popen(line, cwd=project, env=here, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        try:
            trained = next((text for text in member.stdout if '"kind":"trained"' in text), "")
            member.send_signal(signal.SIGINT)
            member.stdout.read()
            assert member.wait(30) == 0
        finally:
            member.kill()
    assert trained


def airdrop(project: Path, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "scripts/airdrop.py", *arguments]
    return subprocess.run(line, cwd=project, env=env, capture_output=True, text=True, check=False)


def test_an_airdrop_names_the_variable_and_what_else_gives(
    project: Path, variables: dict[str, str], tmp_path: Path, rpc: str
) -> None:
    here = {key: value for key, value in variables.items() if key != "WALLET_PRIVATE_KEY_PATH"}
    done = airdrop(project, "devnet", env=here)
    assert done.returncode == 1
    assert "WALLET_PRIVATE_KEY_PATH is not set" in done.stderr
    assert "show-identity --create" in done.stderr
    create_wallet(tmp_path / "wallet.json")
    named = here | {"WALLET_PRIVATE_KEY_PATH": str(tmp_path / "wallet.json")}
    assert json.loads(airdrop(project, rpc, "--json", env=named).stdout)["lamports"] == 2_000_000_000
    profile = tmp_path / "profile.toml"
    profile.write_text(f'wallet = "{tmp_path / "wallet.json"}"\n')
    stored = airdrop(project, rpc, "--json", env=here | {"AFTERMATH_PROFILE": str(profile)})
    assert json.loads(stored.stdout)["lamports"] == 4_000_000_000
    assert airdrop(project, "nowhere", env=named).returncode == 2
    assert airdrop(project, rpc, "--sol", "0", env=named).returncode == 2


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_a_recipe_without_a_wallet_names_the_variable_that_it_reads(
    project: Path, variables: dict[str, str], name: str, tmp_path: Path
) -> None:
    """On devnet, before anything is made or asked for; a wallet named so is taken."""
    here = {key: value for key, value in variables.items() if key != "RPC"}
    done = script(project, name, "devnet", "light", env=here)
    assert done.returncode == 1
    assert done.stderr.startswith("error: no wallet was given\nfix: ")
    assert "WALLET_PRIVATE_KEY_PATH" in done.stderr
    assert "RAW_WALLET" not in done.stderr
    assert not (project / "runs").exists()
    missing = here | {"WALLET_PRIVATE_KEY_PATH": str(tmp_path / "none.json")}
    taken = script(project, "start-training.sh", "http://127.0.0.1:9", "light", env=missing)
    assert f"there is no key file {tmp_path / 'none.json'}" in taken.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "keeps"),
    [
        ([], {}, True),
        (["--matformer-tier", "0"], {}, True),
        (["--matformer-tier=2"], {}, False),
        (["--matformer-tier", "1", "--logs", "json"], {}, False),
        ([], {"MATFORMER_TIER": "1"}, False),
        (["--checkpoint-dir=elsewhere"], {}, False),
        (["--hub-repo", "me/model"], {}, False),
        ([], {"CHECKPOINT_DIR": "elsewhere"}, False),
    ],
)
def test_only_a_member_of_tier_0_without_a_place_of_its_own_is_given_one(
    project: Path,
    variables: dict[str, str],
    tmp_path: Path,
    arguments: list[str],
    environment: dict[str, str],
    keeps: bool,
) -> None:
    told = tmp_path / "aftermath-solana"
    told.write_text('#!/bin/sh\necho "$@"\n')
    told.chmod(0o755)
    here = variables | {"PATH": f"{tmp_path}{os.pathsep}{variables['PATH']}"} | environment
    done = script(project, "start-training.sh", "localnet", "light", *arguments, env=here)
    line = done.stdout.splitlines()[-1]
    assert line.startswith("train ")
    assert line.endswith(" ".join(arguments))
    assert ("runs/light/checkpoints" in line) == keeps


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_recipes_explain_themselves(project: Path, variables: dict[str, str], name: str) -> None:
    for arguments in ((), ("localnet",), ("localnet", "heavy")):
        done = script(project, name, *arguments, env=variables)
        assert done.returncode == 2
        sentence, fix = done.stderr.splitlines()
        assert sentence == "error: a cluster, and test or light, are needed"
        assert fix.startswith(f"fix: call it as: sh scripts/{name} localnet|devnet|URL test|light")
    assert not (project / "runs").exists()


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_a_recipe_takes_the_wallet_that_is_stored(project: Path, name: str, tmp_path: Path) -> None:
    create_wallet(tmp_path / "wallet.json")
    here = {**os.environ, "AFTERMATH_PROFILE": str(tmp_path / "profile.toml")}
    subprocess.run([CONSOLE, "config", "set", "wallet", tmp_path / "wallet.json"], check=True, env=here)
    here["PATH"] = f"{CONSOLE.parent}{os.pathsep}{here['PATH']}"
    done = script(project, name, "http://127.0.0.1:9", "light", env=here)
    assert "no wallet was given" not in done.stderr
    assert "http://127.0.0.1:9 (cannot connect)" in done.stderr


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_a_fix_of_a_recipe_names_what_its_user_types(project: Path, variables: dict[str, str], name: str) -> None:
    nobody = variables | {"RPC": "http://127.0.0.1:9"}
    told = script(project, name, "localnet", "light", env=nobody).stderr
    assert "or name another by the variable RPC, or one more by the variable RPC_2" in told
    assert "--" not in told
    wallet = project / "mine.json"
    here = variables | {"WALLET_PRIVATE_KEY_PATH": str(wallet)}
    create_wallet(wallet)
    told = script(project, name, "http://127.0.0.1:9", "light", env=here).stderr
    assert f"or name another by the first word after sh scripts/{name}, or one more by the variable RPC_2" in told
    bad = script(project, name, "localnet", "light", env=variables | {"RUN_ID": "x" * 33}).stderr
    assert "--run-id" not in bad
    assert "the variable RUN_ID" in bad
