"""Tests of the data hash that the owner puts on chain and every member compares before it joins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from aftermath.config.document import load_config
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.owner.agreed_data import with_agreed_data
from cli.cli_runs import Shell, invoke, train


@pytest.fixture
def tokens(run_dir: Path, tmp_path: Path) -> Path:
    """Return tokens for this test only."""
    return Path(shutil.copytree(run_dir / "tokens", tmp_path / "tokens"))


@pytest.fixture
def config(run_dir: Path, tokens: Path) -> Path:
    """Return a config file of a run on these tokens."""
    text = (run_dir / "config.toml").read_text()
    assert str(run_dir / "tokens") in text
    place = tokens.parent / "config.toml"
    place.write_text(text.replace(str(run_dir / "tokens"), str(tokens)))
    return place


@pytest.fixture
def created(owner: Shell, run_id: str) -> Shell:
    assert owner("create-run", "--run-id", run_id).code == 0
    return owner


def other(tokens: Path) -> None:
    """Return different tokens with the same name and size."""
    file = next(tokens.glob("*.bin"))
    np.flip(np.fromfile(file, "<u2")).tofile(file)


def test_join_with_different_data_is_refused(
    created: Shell, run_id: str, config: Path, tokens: Path
) -> None:
    agreed = created("update-config", "--run-id", run_id, "--config-path", config).data["data_hash"]
    assert (
        agreed
        == invoke("data", "inspect", "--data-path", tokens, "--seq-len", 64, "--json").data["hash"]
    )
    assert created("predownload", "--run-id", run_id).code == 0
    other(tokens)
    refused = created("predownload", "--run-id", run_id).error
    assert f"expected {agreed[:12]}" in refused["error"]
    assert "data inspect" in refused["fix"]
    outcome = train(created, "--run-id", run_id, "--device", "cpu", "--json")
    assert json.loads(outcome.err.splitlines()[-1]) == refused
    assert created("json-dump-run", "--run-id", run_id).data["members"]["seats"] == []
    assert (
        created("update-config", "--run-id", run_id, "--config-path", config).data["data_hash"]
        != agreed
    )
    assert created("predownload", "--run-id", run_id).code == 0


def test_update_config_without_data_uses_hash_from_config(
    created: Shell, run_id: str, config: Path, tokens: Path
) -> None:
    data_hash = invoke("data", "inspect", "--config-path", config, "--json").data["hash"]
    away = tokens.rename(tokens.with_name("elsewhere"))
    without = created("update-config", "--run-id", run_id, "--config-path", config).data
    assert without["data_hash"] == ""
    assert "without data_hash in the config" in without["warnings"][0]
    text = config.read_text()
    config.write_text(
        text.replace("[model.LLM]\n", f"[model.LLM]\ndata_hash = {json.dumps(data_hash)}\n")
    )
    stated = created("update-config", "--run-id", run_id, "--config-path", config).data
    assert stated["data_hash"] == data_hash
    assert "without data_hash" not in stated["warnings"][0]
    away.rename(tokens)
    assert created("predownload", "--run-id", run_id).code == 0
    other(tokens)
    (warning,) = created("update-config", "--run-id", run_id, "--config-path", config).data[
        "warnings"
    ]
    assert "but data_hash is " in warning


def test_data_hash_of_dummy_data_is_refused(config: Path) -> None:
    before, _, after = config.read_text().partition("[model.LLM.data_location")
    rest = after.partition("\n[")[2]
    config.write_text(f"{before}[model.LLM.data_location.Dummy]\n\n[{rest}")
    made_up = load_config(config)
    assert with_agreed_data(made_up, 256) == (made_up, "")
    assert "but data_hash is " in with_agreed_data(made_up.with_data_hash("0" * 64), 256)[1]


def test_malformed_data_hash_is_refused_with_its_line(
    created: Shell, run_id: str, config: Path
) -> None:
    config.write_text(
        config.read_text().replace("[model.LLM]\n", '[model.LLM]\ndata_hash = "abc"\n')
    )
    refused = created("update-config", "--run-id", run_id, "--config-path", config).error["error"]
    assert "data_hash" in refused
    nothing = invoke("data", "inspect", "--json").mistake
    assert nothing["fix"] == "Pass --data-path FOLDER or --config-path FILE"


def test_data_of_another_tokenizer_is_a_warning(
    created: Shell, run_id: str, config: Path, tokens: Path
) -> None:
    agreed = created("update-config", "--run-id", run_id, "--config-path", config).data
    assert agreed["warnings"] == []
    other_tokenizer = byte_tokenizer()
    other_tokenizer.add_special_tokens(["<one more>"])
    other_tokenizer.save(str(tokens / "tokenizer.json"))
    again = created("update-config", "--run-id", run_id, "--config-path", config).data
    assert again["data_hash"] == agreed["data_hash"]
    (warning,) = again["warnings"]
    assert f"the tokens in {tokens} and the model in" in warning
    warnings = invoke("config", "validate", config, "--json").data["warnings"]
    assert [one["message"] for one in warnings] == [warning]
