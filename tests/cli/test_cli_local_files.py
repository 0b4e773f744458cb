"""Tests that commands do not open local files that a run names, unless the user passes their
location.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aftermath.base.outputs import MARK
from cli.cli_runs import Shell


@pytest.fixture
def stolen(owner: Shell, run_id: str, run_dir: Path, tmp_path: Path) -> Path:
    """Return a run whose config names a directory on the member's machine that this software did
    not make.
    """
    secret = tmp_path / "secret"
    shutil.copytree(run_dir / "tokens", secret)
    (secret / MARK).unlink()
    config = tmp_path / "config.toml"
    config.write_text(
        (run_dir / "config.toml").read_text().replace(str(run_dir / "tokens"), str(secret))
    )
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", config).code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    return secret


def test_can_join_refuses_foreign_files(owner: Shell, run_id: str, stolen: Path) -> None:
    outcome = owner("can-join", "--run-id", run_id, "--address", owner.wallet)
    assert outcome.code == 1
    assert f"the run's data is the local path {stolen}, and members do not open" in outcome.out
    path_outcome = owner(
        "can-join", "--run-id", run_id, "--address", owner.wallet, "--data-path", stolen
    )
    assert path_outcome.code == 0, path_outcome.out
    assert f"{stolen} (data)" in path_outcome.data["reads"]
    assert path_outcome.data["contacts"] == []


def test_train_and_predownload_refuse_foreign_files(
    owner: Shell, run_id: str, stolen: Path, run_dir: Path
) -> None:
    for command in (("predownload",), ("train", "--dry-run", "--device", "cpu")):
        refused = owner(*command, "--run-id", run_id)
        assert refused.error["error"].startswith(f"the run's data is the local path {stolen}")
        assert "--data-path DIR" in refused.error["fix"]
    fetched = owner("predownload", "--run-id", run_id, "--data-path", stolen)
    assert fetched.data["data"] == str(stolen)
    below = owner("predownload", "--run-id", run_id, "--data-root", "/")
    assert below.data["model"] == str(run_dir / "model")
