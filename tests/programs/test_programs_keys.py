"""Test the programs' addresses: one step replaces them everywhere, and puts their keys where
Anchor's tools look.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from solders.keypair import Keypair

ROOT = Path(__file__).parents[2]
PROGRAMS = ("coordinator", "authorizer")
NAMED = re.compile(r"\b[1-9A-HJ-NP-Za-km-z]{43,44}\b")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return the files that a change of addresses touches, with nothing built."""
    for name in ("keys", "programs", "scripts", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("Anchor.toml", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def addresses(checkout: Path) -> dict[str, str]:
    texts = {name: (checkout / "keys" / f"{name}-keypair.json").read_text() for name in PROGRAMS}
    return {name: str(Keypair.from_json(text).pubkey()) for name, text in texts.items()}


def new_ids(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, checkout / "scripts" / "new-program-ids.py", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_new_program_ids_replace_old_everywhere(checkout: Path) -> None:
    old = addresses(checkout)
    completed = new_ids(checkout, "--sources-only", "--json")
    assert completed.returncode == 0, completed.stderr
    report = json.loads(completed.stdout)
    new = addresses(checkout)
    assert {name: report[name] for name in PROGRAMS} == new
    assert not set(new.values()) & set(old.values())
    places = {
        "programs/coordinator/src/lib.rs": ["coordinator"],
        "programs/authorizer/src/lib.rs": ["authorizer"],
        "programs/authorizer/state/src/lib.rs": ["authorizer"],
        "Anchor.toml": [*PROGRAMS, *PROGRAMS],
    }
    for place, names in places.items():
        assert NAMED.findall((checkout / place).read_text()) == [new[name] for name in names]
        assert place in report["files"]
    for path in checkout.rglob("*"):
        if path.is_file():
            assert not any(one.encode() in path.read_bytes() for one in old.values()), path
    assert all(
        (checkout / "keys" / f"{name}-keypair.json").stat().st_mode & 0o777 == 0o600
        for name in PROGRAMS
    )


def test_undeclared_program_keys_are_not_replaced(checkout: Path) -> None:
    """Otherwise an address without a known key would stay in the sources."""
    (checkout / "keys/authorizer-keypair.json").write_text(Keypair().to_json())
    before = addresses(checkout)
    completed = new_ids(checkout, "--sources-only")
    assert completed.returncode == 1
    assert "programs/authorizer/src/lib.rs does not declare the address of" in completed.stderr
    assert addresses(checkout) == before


def test_failed_build_is_reported_after_change(checkout: Path) -> None:
    build = checkout / "scripts/build-programs.sh"
    build.write_text("#!/bin/sh\necho no compiler >&2; exit 1\n")
    completed = new_ids(checkout)
    assert completed.returncode == 1
    assert "no compiler" in completed.stderr
    assert "the addresses are changed, but the programs could not be built" in completed.stderr
    build.write_text("#!/bin/sh\nexit 0\n")
    completed = new_ids(checkout, "--json")
    assert json.loads(completed.stdout)["built"] is True


def test_anchor_tools_find_keys(checkout: Path) -> None:
    subprocess.run(["make", "anchor-keys"], cwd=checkout, check=True, capture_output=True)
    for name in PROGRAMS:
        copy = checkout / "target/deploy" / f"{name}-keypair.json"
        assert copy.read_text() == (checkout / "keys" / f"{name}-keypair.json").read_text()
        assert copy.stat().st_mode & 0o777 == 0o600
