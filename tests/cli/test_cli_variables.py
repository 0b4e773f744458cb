"""Tests that errors about missing or invalid environment variables name the variable."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aftermath.cli.main import INDEX, SOLANA
from aftermath.data.gcs import bucket_urls
from aftermath.data.http import HttpClient
from aftermath.data.source import DataError
from cli.cli_runs import invoke
from cli.conftest import ROOT


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("RPC", "nowhere", ("list-runs",)),
        ("WS_RPC", "nowhere", ("list-runs",)),
        ("RPC_3", "nowhere", ("list-runs",)),
        ("COORDINATOR_PROGRAM_ID", "nobody", ("list-runs",)),
        ("RUN_ID", "x" * 33, ("show-run",)),
        ("WALLET_PRIVATE_KEY_PATH", "nowhere/w.json", ("show-identity",)),
        ("RAW_WALLET_PRIVATE_KEY", "secret", ("show-identity",)),
        ("MAX_PRIORITY_FEE", "much", ("tick", "--run-id", "demo")),
        (
            "AFTERMATH_VALIDATOR",
            "nowhere/validator",
            ("localnet", "--engine", "validator", "--port", "0"),
        ),
    ],
)
def test_invalid_variable_error_names_variable(
    variable: str, value: str, line: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    outcome = invoke(*line)
    assert outcome.code in (1, 2)
    assert variable in outcome.err
    assert "secret" not in outcome.err


def test_missing_required_options_are_named_with_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Set the options in the order in which errors request them, until none is missing."""
    for name in INDEX:
        required = [option for option in SOLANA.load(name).params if option.required]
        for option in required:
            if option.envvar:
                monkeypatch.delenv(str(option.envvar), raising=False)
        if not required:
            continue
        outcome = invoke(*name.split())
        assert outcome.code == 2, name
        (missing,) = [
            option for option in required if f"{option.opts[0]} is missing" in outcome.err
        ]
        if missing.envvar:
            assert f"or set {missing.envvar}" in outcome.err, name


def test_invalid_bucket_host_names_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:9000")
    with pytest.raises(DataError, match="STORAGE_EMULATOR_HOST is 'localhost:9000'") as refused:
        bucket_urls("bucket", "", HttpClient())
    assert "STORAGE_EMULATOR_HOST to http://HOST:PORT" in refused.value.fix


@pytest.mark.parametrize(
    ("script", "words", "names"),
    [
        ("join-authorization-create.sh", ("devnet", "", "key"), "GRANTOR_KEYPAIR_FILE"),
        ("join-authorization-create.sh", ("devnet", "file", ""), "GRANTEE_PUBKEY"),
        ("join-authorization-set-delegates.sh", ("devnet", "", "file"), "GRANTOR_PUBKEY"),
        ("join-authorization-set-delegates.sh", ("devnet", "key", ""), "GRANTEE_KEYPAIR_FILE"),
        ("setup-run.sh", ("", "light"), "the cluster's name is empty"),
        ("setup-run.sh", ("devnet", "light"), "WALLET_PRIVATE_KEY_PATH"),
    ],
)
def test_recipe_names_missing_variables(
    script: str, words: tuple[str, ...], names: str, tmp_path: Path
) -> None:
    """Without HOME, too, as in a container."""
    variables = ("PATH", "PYTHONPATH")
    environment = {name: os.environ[name] for name in variables if name in os.environ}
    completed = subprocess.run(
        ["sh", ROOT / "scripts" / script, *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert completed.returncode in (1, 2)
    sentence, fix = completed.stderr.splitlines()
    assert sentence.startswith("error: ")
    assert fix.startswith("fix: ")
    assert names in completed.stderr
