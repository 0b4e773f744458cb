"""Tests of the recipes: two shell scripts set up a run and train in it, as `make` calls them."""

from __future__ import annotations

import importlib.util
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
from aftermath.cli import connection
from aftermath.localnet import validator_binary
from cli.cli_runs import CONSOLE, invoke
from cli.conftest import ROOT

FIRST_STEPS_SECONDS = 400  # a light model's first round on a machine that is busy with other tests
BINARY = validator_binary()  # looked for before a test has another home


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a clean checkout."""
    for name in ("scripts", "config", "keys"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


SMALLER = {
    "light-config.toml": {"max_seq_len = 512": "max_seq_len = 64"},
    "light-config.files.toml": {
        "hidden = 256\nlayers = 8\nheads = 8\nkv-heads = 8\nintermediate = 1024\n": "hidden = 64\nlayers = 2\n",
        "[tokens]": "[tokens]\nbudget-bytes = 60000\n#",
    },
}


@pytest.fixture
def small_project(project: Path) -> Path:
    """Return a checkout whose light run has a small model and few tokens."""
    for name, changes in SMALLER.items():
        path = project / "config" / "solana-test" / name
        text = path.read_text()
        for usual, smaller in changes.items():
            assert usual in text
            text = text.replace(usual, smaller)
        path.write_text(text)
    return project


@pytest.fixture
def variables(rpc: str, run_id: str) -> dict[str, str]:
    """Return the environment with our console script and this test's network and run."""
    path = f"{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "RPC": rpc, "RUN_ID": run_id, "OMP_NUM_THREADS": "1"}


def script(
    project: Path, name: str, *arguments: str, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    line = ["sh", f"scripts/{name}", *arguments]
    return subprocess.run(line, cwd=project, env=env, capture_output=True, text=True, check=False)


# Two minutes. The other tests here cover what each script calls; this one trains.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_light_recipe_trains(
    small_project: Path, variables: dict[str, str], rpc: str, run_id: str
) -> None:
    project = small_project
    setup = script(project, "setup-run.sh", "localnet", "light", env=variables)
    assert setup.returncode == 0, setup.stderr
    assert "ready; join with" in setup.stdout
    again = script(project, "setup-run.sh", "localnet", "light", env=variables)
    assert again.returncode == 0, again.stderr
    assert "is set up already" in again.stdout

    line = [
        "sh",
        "scripts/start-training.sh",
        "localnet",
        "light",
        "--logs",
        "json",
        "--micro-batch-size",
        "1",
    ]
    with subprocess.Popen(
        line, cwd=project, env=variables, stdout=subprocess.PIPE, text=True
    ) as member:
        assert member.stdout is not None
        timer = subprocess.Popen(
            ["sh", "-c", f"sleep {FIRST_STEPS_SECONDS}; kill -9 {member.pid}"],
            start_new_session=True,
        )
        lines = []
        for text in member.stdout:
            lines.append(text)
            if '"kind":"trained"' in text:
                member.send_signal(signal.SIGINT)
        os.killpg(timer.pid, signal.SIGKILL)
        timer.wait()
        assert member.wait(30) == 0, lines
    assert any('"kind":"trained"' in text for text in lines)
    assert '"kind":"left"' in lines[-1]

    owner = project / "runs" / "wallets" / "owner.json"
    paused = invoke(
        "set-paused", "--rpc", rpc, "--run-id", run_id, "-w", owner, "pause", "--json"
    ).data
    assert paused["run_id"] == run_id


@pytest.fixture
def validator() -> Iterator[str]:
    """Return a real solana-test-validator without our programs."""
    if BINARY is None:
        pytest.skip(
            "solana-test-validator not found (PATH, AFTERMATH_VALIDATOR or ~/.cache/aftermath/bin)"
        )
    line = [sys.executable, "-m", "aftermath.localnet", "--rpc-port", "0", "--engine", "validator"]
    environment = {**os.environ, "AFTERMATH_VALIDATOR": str(BINARY)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        output_line = process.stdout.readline()
        assert "rpc=" in output_line
        yield output_line.partition("rpc=")[2].split()[0]
        process.send_signal(signal.SIGINT)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_devnet_recipes_lead_from_airdrop_to_trained_round(
    project: Path, variables: dict[str, str], validator: str, tmp_path: Path
) -> None:
    create_wallet(tmp_path / "wallet.json")
    here = {key: value for key, value in variables.items() if key != "RPC"}
    here["WALLET_PRIVATE_KEY_PATH"] = str(tmp_path / "wallet.json")
    line = [sys.executable, "scripts/airdrop.py", validator, "--sol", "5", "--json"]
    completed = subprocess.run(
        line, cwd=project, env=here, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["lamports"] == 5_000_000_000
    setup = script(project, "setup-run.sh", validator, "light", env=here)
    assert setup.returncode == 0, setup.stderr
    assert "ready; join with" in setup.stdout
    line = [
        "sh",
        "scripts/start-training.sh",
        validator,
        "light",
        "--logs",
        "json",
        "--micro-batch-size",
        "1",
    ]
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


def airdrop(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run scripts/airdrop.py in this process and return its exit status, output and errors."""
    spec = importlib.util.spec_from_file_location("airdrop", ROOT / "scripts/airdrop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    status = module.main(arguments)
    return status, *capsys.readouterr()


def test_airdrop_without_wallet_names_variable_and_faucets(
    tmp_path: Path, rpc: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = airdrop(capsys, "devnet")
    assert status == 1
    assert "WALLET_PRIVATE_KEY_PATH is not set" in error
    assert "show-identity --create" in error
    create_wallet(tmp_path / "wallet.json")
    profile = tmp_path / "profile.toml"
    profile.write_text(f'wallet = "{tmp_path / "wallet.json"}"\n')
    monkeypatch.setenv("AFTERMATH_PROFILE", str(profile))
    assert json.loads(airdrop(capsys, rpc, "--json")[1])["lamports"] == 2_000_000_000
    monkeypatch.setenv("AFTERMATH_PROFILE", "")
    monkeypatch.setenv("WALLET_PRIVATE_KEY_PATH", str(tmp_path / "wallet.json"))
    assert json.loads(airdrop(capsys, rpc, "--json")[1])["lamports"] == 4_000_000_000
    assert airdrop(capsys, "nowhere")[0] == 2
    assert airdrop(capsys, rpc, "--sol", "0")[0] == 2


@pytest.fixture
def stub(tmp_path: Path, variables: dict[str, str]) -> dict[str, str]:
    """Put a stub `aftermath-solana` first in the path. It prints its arguments, except for
    show-identity.
    """
    command = tmp_path / "bin" / "aftermath-solana"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\n[ "$1" != show-identity ] || exec "{CONSOLE}" "$@"\n'
        'echo "$@ ($AFTERMATH_RECIPE, wallet $WALLET_PRIVATE_KEY_PATH)"\n[ "$1" != deploy ] || exit 3\n'
    )
    command.chmod(0o755)
    return variables | {"PATH": f"{command.parent}{os.pathsep}{variables['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_recipe_without_wallet_names_its_variable(
    project: Path, stub: dict[str, str], name: str, tmp_path: Path
) -> None:
    """On devnet, the refusal comes before anything is made or requested. The variable's wallet and
    the stored one are accepted.
    """
    completed = script(project, name, "devnet", "light", env=stub)
    assert completed.returncode == 1
    assert completed.stdout == ""
    assert completed.stderr.startswith("error: no wallet was given\nfix: ")
    assert "WALLET_PRIVATE_KEY_PATH" in completed.stderr
    assert "RAW_WALLET" not in completed.stderr
    assert not (project / "runs").exists()
    wallet = tmp_path / "wallet.json"
    with_wallet = script(
        project, name, "devnet", "light", env=stub | {"WALLET_PRIVATE_KEY_PATH": str(wallet)}
    )
    assert f"wallet {wallet}" in with_wallet.stdout
    create_wallet(wallet)
    profile = tmp_path / "profile.toml"
    profile.write_text(f'wallet = "{wallet}"\n')
    stored = script(
        project, name, "devnet", "light", env=stub | {"AFTERMATH_PROFILE": str(profile)}
    )
    assert "--rpc devnet" in stored.stdout


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
def test_recipe_gives_checkpoint_dir_to_tier_0_by_default(
    project: Path,
    stub: dict[str, str],
    arguments: list[str],
    environment: dict[str, str],
    keeps: bool,
) -> None:
    here = stub | {"WALLET_PRIVATE_KEY_PATH": "mine.json"} | environment
    completed = script(project, "start-training.sh", "localnet", "light", *arguments, env=here)
    line = completed.stdout.splitlines()[-1].partition(" (")[0]
    assert line.startswith("train ")
    assert line.endswith(" ".join(arguments))
    assert ("runs/light/checkpoints" in line) == keeps


@pytest.mark.parametrize(
    ("variant", "environment", "ranks"),
    [
        (
            "test",
            {},
            "train --rpc localnet --run-id RUN --data-parallelism 0 --tensor-parallelism 1",
        ),
        (
            "test",
            {"DATA_PARALLELISM": "4", "TENSOR_PARALLELISM": "2"},
            "train --rpc localnet --run-id RUN --data-parallelism 4 --tensor-parallelism 2",
        ),
        ("light", {}, "train --rpc localnet --run-id RUN"),
    ],
)
def test_large_recipe_passes_its_parallelism(
    project: Path, stub: dict[str, str], variant: str, environment: dict[str, str], ranks: str
) -> None:
    here = (
        stub
        | {"RPC": "localnet", "RUN_ID": "RUN", "WALLET_PRIVATE_KEY_PATH": "mine.json"}
        | environment
    )
    completed = script(
        project, "start-training.sh", "localnet", variant, "--matformer-tier", "1", env=here
    )
    assert completed.stdout.splitlines()[-1].startswith(f"{ranks} --matformer-tier 1 (")


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_recipes_without_arguments_print_usage(
    project: Path, variables: dict[str, str], name: str
) -> None:
    for arguments in ((), ("localnet",), ("localnet", "heavy")):
        completed = script(project, name, *arguments, env=variables)
        assert completed.returncode == 2
        sentence, fix = completed.stderr.splitlines()
        assert sentence == "error: a cluster, and test or light, are needed"
        assert fix.startswith(f"fix: call it as: sh scripts/{name} localnet|devnet|URL test|light")
    assert not (project / "runs").exists()


@pytest.mark.parametrize("name", ["setup-run.sh", "start-training.sh"])
def test_recipe_passes_cluster_name_to_commands(
    project: Path, stub: dict[str, str], name: str
) -> None:
    here = stub | {"WALLET_PRIVATE_KEY_PATH": "mine.json"}
    for cluster, word in (
        ("localnet", "the variable RPC"),
        ("http://127.0.0.1:9", f"the first word after sh scripts/{name}"),
    ):
        assert f"({word}, wallet " in script(project, name, cluster, "light", env=here).stdout


def test_recipe_fix_names_variables_instead_of_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("AFTERMATH_RECIPE", "the variable RPC")
    result = invoke("json-dump-run", "--rpc", "http://127.0.0.1:9", "--run-id", "x").err
    assert "or pass another node with the variable RPC or the variable RPC_2" in result
    assert "--" not in result
    monkeypatch.setenv("RUN_ID", "x" * 33)
    bad = invoke("json-dump-run").err
    assert "--run-id" not in bad
    assert "the variable RUN_ID" in bad
