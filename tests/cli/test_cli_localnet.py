"""Tests of the localnet command (ledger, port, engines) and of deploy on a local network."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aftermath.chain.deploy import CACHE
from aftermath.chain.wallet import create_wallet
from aftermath.cli.localnet import clear
from aftermath.localnet import validator_binary
from aftermath.localnet.runtime import minimum_balance
from cli.cli_runs import CONSOLE, Shell, invoke
from cli.conftest import ROOT
from cli.test_cli_bad_input import ELSEWHERE

VALIDATOR = validator_binary()


@contextmanager
def localnet(*arguments: str | Path, end: signal.Signals = signal.SIGTERM) -> Iterator[str]:
    """Start a network for this test and return its RPC address."""
    line = [CONSOLE, "localnet", "--port", "0", "--json", *arguments]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = ""
    while not output.endswith("}\n"):
        line_read = process.stdout.readline()
        assert line_read, process.stderr and process.stderr.read()
        output += line_read
    try:
        yield json.loads(output)["rpc"]
    finally:
        process.send_signal(end)
        process.wait(30)


@pytest.mark.slow
def test_ledger_after_kill_keeps_runs(tmp_path: Path) -> None:
    create_wallet(tmp_path / "w.json")
    ledger = ("--ledger", tmp_path / "ledger")
    with localnet(*ledger, end=signal.SIGKILL) as rpc:
        assert Shell(rpc, tmp_path / "w.json")("create-run", "--run-id", "kept").code == 0
    with localnet(*ledger) as rpc:
        assert [row["run_id"] for row in Shell(rpc, tmp_path)("list-runs").data] == ["kept"]
        in_use = invoke("localnet", "--port", "0", *ledger)
        assert in_use.code == 1
        assert "in use" in in_use.err
        assert "in use" in invoke("localnet", "--port", "0", *ledger, "--reset").err
    clear(tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    "names",
    [
        ["lock", "ledger.sqlite3", "ledger.sqlite3-wal"],  # as after a killed localnet
        ["lock", "snapshot-000003", "journal-000002", "journal-000003", ".snapshot-000004.partial"],
    ],
)
def test_reset_deletes_ledger_of_any_format(tmp_path: Path, names: list[str]) -> None:
    directory = tmp_path / "ledger"
    directory.mkdir()
    for name in names:
        (directory / name).touch()
    clear(directory)
    assert not directory.exists()


def test_reset_of_foreign_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    refused = invoke("localnet", "--ledger", tmp_path, "--reset", "--port", "0")
    assert refused.code == 1
    assert "thesis.txt" in refused.err
    assert (tmp_path / "thesis.txt").exists()
    assert invoke("localnet", "--reset").code == 2


def test_occupied_localnet_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = invoke("localnet", "--port", port)
    assert refused.code == 1
    assert str(port) in refused.err


def test_validator_engine_without_binary_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("AFTERMATH_VALIDATOR", raising=False)
    refused = invoke("localnet", "--engine", "validator", "--port", "0")
    assert refused.code == 1
    assert "solana-test-validator was not found" in refused.err
    assert "--engine embedded" in refused.err


@pytest.mark.slow
def test_deploy_on_bare_network_enables_create_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Estimate the cost of deploying both programs, then deploy them. `create-run` fails before and
    works afterwards.
    """
    monkeypatch.chdir(ROOT)
    create_wallet(tmp_path / "w.json")
    with bare_network() as rpc:
        shell = Shell(rpc, tmp_path / "w.json")

        def needed(*which: str) -> int:
            error = shell("deploy", *which, "--rpc-2", ELSEWHERE).error["error"]
            return round(float(error.split("needs ")[1].split(" SOL")[0]) * 10**9)

        keep = minimum_balance(0)
        alone = [needed("--program", name) - keep for name in ("authorizer", "coordinator")]
        assert needed() == sum(alone) + keep
        refused = shell("create-run", "--run-id", "demo").error
        assert "there is no program" in refused["error"]
        assert "aftermath-solana deploy" in refused["fix"]
        cached_keys = sorted(CACHE.glob("*"))
        planned = shell("deploy", "--dry-run").data
        assert sorted(CACHE.glob("*")) == cached_keys
        assert [one["instructions"] for one in planned["transactions"]] == 2 * [
            ["system.create_account", "loader.initialize_buffer"],
            ["loader.write"],
            ["system.create_account", "loader.deploy"],
        ]
        data = shell("deploy").data
        assert [row["action"] for row in data["programs"]] == ["deployed", "deployed"]
        assert data["transactions"] == sum(one["times"] for one in planned["transactions"])
        assert data["fees_lamports"] <= planned["fees_lamports"] <= planned["needed_lamports"]
        # existing programs are not changed
        assert shell("deploy", "--dry-run").data["transactions"] == 0
        assert shell("create-run", "--run-id", "demo").code == 0


@contextmanager
def bare_network() -> Iterator[str]:
    """Return an embedded network without programs."""
    line = [sys.executable, "-m", "aftermath.localnet", "--rpc-port", "0"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output_line = process.stdout.readline()
    try:
        yield output_line.split("rpc=")[1].split()[0]
    finally:
        process.terminate()
        process.wait(30)


def test_deploy_of_same_programs_changes_nothing(
    owner: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    data = owner("deploy").data
    assert [(row["program"], row["action"]) for row in data["programs"]] == [
        ("authorizer", "unchanged"),
        ("coordinator", "unchanged"),
    ]
    assert data["transactions"] == 0


def test_deploy_with_wrong_program_key_is_refused(owner: Shell, tmp_path: Path) -> None:
    create_wallet(tmp_path / "key.json")
    refused = owner(
        "deploy", "--program", "coordinator", "--program-keypair", tmp_path / "key.json"
    ).error
    assert "is built for the address" in refused["error"]
    assert "declare_id!" in refused["fix"]


def test_deploy_key_without_program_name_is_refused(owner: Shell, tmp_path: Path) -> None:
    assert owner("deploy", "--program-keypair", tmp_path / "key.json").code == 2
    missing = owner(
        "deploy", "--program", "coordinator", "--program-keypair", tmp_path / "key.json"
    ).error
    assert "key.json" in missing["error"]


@pytest.mark.slow
@pytest.mark.skipif(VALIDATOR is None, reason="solana-test-validator is not installed")
def test_validator_engine_runs_same_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AFTERMATH_VALIDATOR", str(VALIDATOR))
    create_wallet(tmp_path / "w.json")
    with localnet("--engine", "validator") as rpc:
        shell = Shell(rpc, tmp_path / "w.json")
        assert shell("create-run", "--run-id", "real").code == 0
        assert [row["run_id"] for row in shell("list-runs").data] == ["real"]
        assert shell("close-run", "--run-id", "real", "--yes").code == 0
