"""Tests with unreadable files, and with standard output that cannot be written completely."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.wallet import create_wallet
from cli.cli_runs import CONSOLE, invoke


@pytest.mark.slow
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_cut_by_full_disk_exits_1(tmp_path: Path, unbuffered: str) -> None:
    """A limit on the file's size cuts the first write, like a nearly full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    with (tmp_path / "schema.json").open("w") as file:
        completed = subprocess.run(
            [CONSOLE, "config", "schema"],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            # Python would cut bytecode that it writes under this limit, and later processes would
            # fail to load it.
            env=os.environ | {"PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=limit,
            check=False,
        )
    assert completed.returncode == 1
    assert "cannot write the output: File too large" in completed.stderr


def test_unreadable_file_is_permission_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = tmp_path / "w.json"
    create_wallet(wallet)
    real = os.access

    def access(path: Any, mode: int) -> bool:
        """Root may read any file, so ask the system as if for another user."""
        return real(path, mode) and not (str(path) == str(wallet) and mode == os.R_OK)

    monkeypatch.setattr(os, "access", access)
    refused = invoke("show-identity", "-w", wallet, "--json").mistake
    assert refused["error"] == f"--wallet-private-key-path: cannot read {wallet}: permission denied"
    assert refused["fix"] == f"Allow it for this user: chmod u+r {wallet}"
