"""Test the identities that this machine keeps for members of servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aftermath.server.kept_identity import kept_identity

ADDRESS = "127.0.0.1:20000"
SHOW = """
import sys
from aftermath.server.kept_identity import kept_identity
print(kept_identity(sys.argv[1], sys.argv[2], 0, None).pubkey, flush=True)
sys.stdin.read()
"""


def start(state: Path, address: str = ADDRESS) -> subprocess.Popen[str]:
    """Start a process that takes an identity and keeps it until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", SHOW, address, "demo"],
        env=os.environ | {"XDG_STATE_HOME": str(state)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def identity_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_kept_identity_returns_after_process_is_killed(tmp_path: Path) -> None:
    members = [start(tmp_path), start(tmp_path)]
    identities = {identity_of(member) for member in members}
    assert len(identities) == 2
    for member in members:
        member.kill()
        member.communicate()
    again = start(tmp_path)
    assert identity_of(again) in identities
    again.communicate()
    keys = list(tmp_path.rglob("*.key"))
    assert len(keys) == 2
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)


def test_kept_identity_differs_between_servers_runs_and_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    members = (
        (ADDRESS, "demo", 0, None),
        (ADDRESS, "other", 0, None),
        ("127.0.0.1:20001", "demo", 0, None),
        (ADDRESS, "demo", 1, None),
        (ADDRESS, "demo", 0, tmp_path),
    )
    assert len({kept_identity(*member).pubkey for member in members}) == len(members)


def test_kept_identity_is_one_for_all_names_of_this_machine(tmp_path: Path) -> None:
    member = start(tmp_path)
    identity = identity_of(member)
    member.communicate()
    again = start(tmp_path, "localhost:20000")
    assert identity_of(again) == identity
    again.communicate()


def test_kept_identity_without_writable_directory_is_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert kept_identity(ADDRESS, "demo", 0, None).source == "made for this process"
    assert "a new identity at every start" in caplog.text
