"""Tests that settings that the program accepts but members cannot run are refused, with their line,
before anything is sent.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.cli_runs import Shell, invoke


def configure(owner: Shell, config: Path, text: str) -> str:
    """Return the mistakes that `update-config` finds in this config."""
    config.write_text(text)
    return owner("update-config", "--run-id", "nowhere", "--config-path", config).error["error"]


def line_of(text: str, part: str) -> int:
    (line_number,) = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return line_number


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        (
            'architecture = "HfLlama"',
            'architecture = "HfNanoGPT"',
            'the checkpoint has another one; use "HfLlama"',
        ),
        ("max_seq_len = 64", "max_seq_len = 2049", "2049: the model has only 2048 positions"),
        ("max_seq_len = 64", "max_seq_len = 1", "no token is left to predict"),
        ('data_type = "Pretraining"', 'data_type = "Finetuning"', 'use "Pretraining"'),
        (
            "quantize_1bit = true",
            "quantize_1bit = true\nweight_decay = 251.0",
            "the highest learning rate, 0.004",
        ),
    ],
)
def test_config_beyond_member_limits_is_refused(
    owner: Shell, run_dir: Path, tmp_path: Path, right: str, wrong: str, says: str
) -> None:
    text = (run_dir / "config.toml").read_text()
    assert right in text
    text = text.replace(right, wrong)
    wrong = wrong.splitlines()[-1]
    message = configure(owner, tmp_path / "config.toml", text)
    assert message.startswith(f"{tmp_path / 'config.toml'}:{line_of(text, wrong)}: {wrong}: ")
    assert says in message


def test_checkpoint_slice_for_run_is_refused(owner: Shell, run_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "slices"
    assert (
        invoke("model", "export", "--src", run_dir / "model", "--tiers", "1", "--out", out).code
        == 0
    )
    place = out / "model-tier1"
    assert (place / "config.json").is_file()
    usual = f"Local = {json.dumps(str(run_dir / 'model'))}"
    for form in ("Local = {place}", "Local = {{ path = {place} }}"):
        text = (run_dir / "config.toml").read_text()
        text = text.replace(usual, form.format(place=json.dumps(str(place))))
        message = configure(owner, tmp_path / "config.toml", text)
        line = f"{tmp_path / 'config.toml'}:{line_of(text, str(place))}"
        assert message.startswith(f"{line}: checkpoint {place} holds only tier 1"), form


def test_invalid_hub_repo_is_refused_before_any_request(
    owner: Shell, run_dir: Path, tmp_path: Path
) -> None:
    text = (run_dir / "config.toml").read_text()
    text = text.replace(
        f"Local = {json.dumps(str(run_dir / 'model'))}", 'Hub = { repo_id = "not a repo" }'
    )
    message = configure(owner, tmp_path / "config.toml", text)
    line = line_of(text, "not a repo")
    assert message.startswith(
        f'{tmp_path / "config.toml"}:{line}: repo_id = "not a repo" is not a valid'
    )
    assert "OWNER/NAME" in message


def test_config_reports_all_limit_violations(owner: Shell, run_dir: Path, tmp_path: Path) -> None:
    text = (run_dir / "config.toml").read_text()
    for right, wrong in (
        ("max_seq_len = 64", "max_seq_len = 4096"),
        ('"Pretraining"', '"Finetuning"'),
    ):
        text = text.replace(right, wrong)
    assert len(configure(owner, tmp_path / "config.toml", text).splitlines()) == 2


def test_config_within_model_limits_is_accepted(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    config = tmp_path / "config.toml"
    config.write_bytes(
        b"\xef\xbb\xbf"
        + (run_dir / "config.toml").read_bytes().replace(b"max_seq_len = 64", b"max_seq_len = 2048")
    )
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert owner("json-dump-run", "--run-id", run_id).data["model"]["max_seq_len"] == 2048
