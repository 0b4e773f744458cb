"""Test that the demo touches only its own directory and ignores the user's variables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aftermath.base.outputs import OutputError
from aftermath.cli.main import child_environment
from aftermath.demo.commands import DEMO_NAMES
from aftermath.testnet.processes import ProcessError
from aftermath.testnet.workdir import claimed_workdir


def test_demo_directory_is_emptied_for_next_demo(tmp_path: Path) -> None:
    root = tmp_path / "new" / "demo"
    with claimed_workdir(root, "demo", "--dir DIR", DEMO_NAMES):
        (root / "keys").mkdir()
        (root / "keys" / "owner.json").write_text("1")
        (root / "events").symlink_to(tmp_path)
        (root / "checkpoints" / "demo-step5").mkdir(parents=True)
    with claimed_workdir(root, "demo", "--dir DIR", DEMO_NAMES):
        assert sorted(path.name for path in root.iterdir()) == [".aftermath-demo", "checkpoints-1"]
        assert (root / "checkpoints-1" / "demo-step5").is_dir()
    assert tmp_path.is_dir()


def test_demo_directory_with_foreign_files_is_refused(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("precious")
    with (
        pytest.raises(ProcessError, match="not a demo's") as refused,
        claimed_workdir(tmp_path, "demo", "--dir DIR", DEMO_NAMES),
    ):
        pytest.fail("the directory was taken")
    assert refused.value.fix == "Name another directory: --dir DIR, or empty it"
    assert precious.read_text() == "precious"
    line = [sys.executable, "-m", "aftermath.demo", "--dir", str(tmp_path)]
    completed = subprocess.run(line, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert "make demo DIR=" in completed.stdout.replace("\n", " ")
    assert precious.read_text() == "precious"


def test_claim_refuses_demo_directory_with_added_file(tmp_path: Path) -> None:
    with claimed_workdir(tmp_path / "demo", "demo", "--dir DIR", DEMO_NAMES):
        (tmp_path / "demo" / "thesis.tex").write_text("precious")
    with (
        pytest.raises(OutputError, match=r"holds thesis\.tex"),
        claimed_workdir(tmp_path / "demo", "demo", "--dir DIR", DEMO_NAMES),
    ):
        pytest.fail("the directory was taken")
    assert (tmp_path / "demo" / "thesis.tex").read_text() == "precious"


def test_demo_directory_in_use_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    with claimed_workdir(root, "demo", "--dir DIR", DEMO_NAMES):
        (root / "ledger").write_text("in use")
        with (
            pytest.raises(ProcessError, match="another demo works in"),
            claimed_workdir(root, "demo", "--dir DIR", DEMO_NAMES),
        ):
            pytest.fail("the directory was taken")
        assert (root / "ledger").read_text() == "in use"


def test_uncreatable_demo_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ProcessError, match="cannot work in"),
        claimed_workdir(tmp_path / "file" / "demo", "demo", "--dir DIR", DEMO_NAMES),
    ):
        pytest.fail("the directory was taken")


def test_demo_ignores_variables_of_users_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "RPC",
        "RUN_ID",
        "HUB_REPO",
        "CHECKPOINT_DIR",
        "RAW_WALLET_PRIVATE_KEY",
        "RAW_IDENTITY_SECRET_KEY",
    ):
        monkeypatch.setenv(name, "mine")
        assert name not in child_environment()
    monkeypatch.setenv("LANG", "C")
    assert child_environment()["LANG"] == "C"
