"""Tests that `update-config` prints each changed key before it sends the change, and sends nothing
if nothing changes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.cli_runs import Shell, invoke


@pytest.fixture
def configured(owner: Shell, run_id: str, run_dir: Path) -> Shell:
    assert owner("create-run", "--run-id", run_id, "--name", "Test").code == 0
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    return owner


def other(run_dir: Path, place: Path, **replaced: str) -> Path:
    """Return the config with the values of some keys replaced."""
    text = (run_dir / "config.toml").read_text()
    for key, value in replaced.items():
        lines = [
            f"{key} = {value}" if line.startswith(f"{key} = ") else line
            for line in text.splitlines()
        ]
        assert lines != text.splitlines()
        text = "\n".join(lines)
    path = place / "other.toml"
    path.write_text(text)
    return path


def test_every_printed_key_can_be_explained(owner: Shell, run_id: str, run_dir: Path) -> None:
    assert owner("create-run", "--run-id", run_id, "--name", "Test").code == 0
    config = ("--config-path", run_dir / "config.toml")
    changes = owner("update-config", "--run-id", run_id, *config).data["changes"]
    keys = {change["key"] for change in changes}
    assert {"model.optimizer.kind", "model.tier_widths", "model.checkpoint.repo"} <= keys
    unknown = [key for key in sorted(keys) if invoke("config", "explain", key).code]
    assert unknown == []
    assert "computes it from" in invoke("config", "explain", "model.tier_widths").out
    assert invoke("config", "explain", "model.optimiser.kind").code == 2


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {path: values}
    return {
        name: one
        for key, value in values.items()
        for name, one in flat(value, f"{path}.{key}" if path else key).items()
    }


def test_printed_changes_equal_dump_differences(
    configured: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    """Change the optimizer and the rules. The command prints every key set by owners that differs
    between the two dumps.
    """
    before = flat(configured("json-dump-run", "--run-id", run_id).data)
    head = (
        other(run_dir, tmp_path, cooldown_time="77")
        .read_text()
        .partition("[model.LLM.optimizer")[0]
    )
    (tmp_path / "other.toml").write_text(
        head + "[model.LLM.optimizer.SparseLoCo]\ninner_steps = 3\n"
    )
    line = (
        "update-config",
        "--run-id",
        run_id,
        "--config-path",
        tmp_path / "other.toml",
        "--name",
        "New",
    )
    planned = configured(*line, "--dry-run").data
    assert flat(configured("json-dump-run", "--run-id", run_id).data) == before
    data = configured(*line).data
    assert data["changes"] == planned["changes"]
    after = flat(configured("json-dump-run", "--run-id", run_id).data)
    drawn = {"run.seq", "run.model_seq", "model.spec_hash"}
    differences = {
        key: (before.get(key), after.get(key))
        for key in before | after
        if before.get(key) != after.get(key)
    }
    changes = {one["key"]: (one["old"], one["new"]) for one in data["changes"]}
    assert changes == {key: values for key, values in differences.items() if key not in drawn}
    assert changes["run.config.cooldown_time"][1] == 77
    assert changes["model.optimizer.kind"] == ("distro", "sparseloco")
    assert changes["model.optimizer.quantize_1bit"][1] is None
    assert changes["model.metadata.name"] == ("Test", "New")


def test_unchanged_config_is_not_sent(configured: Shell, run_id: str, run_dir: Path) -> None:
    for more in ((), ("--name", "Test"), ("--client-version", ""), ("--switch-to-hub",)):
        line = (
            "update-config",
            "--run-id",
            run_id,
            "--config-path",
            run_dir / "config.toml",
            *more,
        )
        for command in (line, (*line, "--dry-run")):
            outcome = configured(*command)
            assert (outcome.data["changes"], outcome.data["signatures"]) == ([], []), command
            assert f"run {run_id} has these settings already: nothing is sent" in outcome.err


def test_changes_are_printed_before_sending(
    configured: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    line = ("update-config", "--rpc", configured.rpc, "-w", configured.wallet, "--run-id", run_id)
    for more in (("--dry-run",), ()):
        outcome = invoke(
            *line, "--config-path", other(run_dir, tmp_path, cooldown_time="78"), *more
        )
        assert outcome.code == 0
        [row] = [row.split() for row in outcome.err.splitlines() if "cooldown_time" in row]
        assert (row[0], row[2]) == ("run.config.cooldown_time", "78")


def test_first_config_prints_nondefault_values(owner: Shell, run_id: str, run_dir: Path) -> None:
    assert owner("create-run", "--run-id", run_id).code == 0
    line = (
        "update-config",
        "--run-id",
        run_id,
        "--config-path",
        run_dir / "config.toml",
        "--dry-run",
    )
    changes = {one["key"]: one["new"] for one in owner(*line).data["changes"]}
    stderr = invoke(*line, "--rpc", owner.rpc, "-w", owner.wallet).err
    names = {row.split()[0] for row in stderr.splitlines() if row.startswith(("run.", "model."))}
    assert names < set(changes)
    hidden = set(changes) - names
    (row,) = [row for row in stderr.splitlines() if row.startswith(f"and {len(hidden)} defaults: ")]
    assert set(row.partition(": ")[2].split(", ")) == hidden
    left_out = {"min_round_time", "overlap", "weight_decay", "compression_topk_embeddings"}
    assert {key.split(".")[-1] for key in hidden} == left_out
    assert not any(f"{name} =" in (run_dir / "config.toml").read_text() for name in left_out)
    assert changes["model.tiers"] == 3
    assert {
        "run.config.total_steps",
        "model.tiers",
        "model.checkpoint.repo",
        "model.lr_schedule.base_lr",
    } <= names


def test_restart_step_change_prints_its_data(configured: Shell, run_id: str) -> None:
    configured("set-paused", "--run-id", run_id, "--resume")
    configured("set-paused", "--run-id", run_id, "pause")
    line = ("update-config", "--run-id", run_id, "--restart-from-step", 11)
    assert configured(*line).data["changes"] == [
        {"key": "run.step", "old": 1, "new": 11},
        {"key": "run.data_index", "old": 0, "new": 120},
    ]
    assert configured(*line).data["changes"] == []
