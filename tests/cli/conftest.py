"""A real local network for the whole folder, a wallet for each test, and a small model with tokens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.cli.main import INDEX
from cli.cli_runs import CONSOLE, Shell

ROOT = Path(__file__).parents[2]
SHAPE = ["--hidden", "64", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--intermediate", "256"]


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, wallet or cache of the person who runs the tests reaches a command."""
    for name in ("RPC", "WS_RPC", "RUN_ID", "AUTHORIZER", "WALLET_PRIVATE_KEY_PATH", "RAW_WALLET_PRIVATE_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session")
def rpc() -> Iterator[str]:
    """The RPC address of `aftermath-solana localnet` on a port of the system's choice."""
    process = subprocess.Popen([CONSOLE, "localnet", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    while not said.endswith("}\n"):
        line = process.stdout.readline()
        assert line, "the local network ended before it was ready"
        said += line
    yield json.loads(said)["rpc"]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


@pytest.fixture
def owner(rpc: str, tmp_path: Path) -> Shell:
    """A user with a new wallet, which the local network gives SOL when it needs some."""
    wallet = tmp_path / "owner.json"
    create_wallet(wallet)
    return Shell(rpc, wallet)


@pytest.fixture
def run_id() -> str:
    """A run of the test's own on the shared network, another one if the test is run again."""
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an untrained model, tokens, and a config.toml that names both."""
    root = tmp_path_factory.mktemp("material")
    scripts: tuple[tuple[str | Path, ...], ...]
    scripts = (("init-model.py", "--out", root / "model", *SHAPE), ("tokenise.py", "--output", root / "tokens"))
    for script, *arguments in scripts:
        budget = ("--budget-bytes", "60000") if script == "tokenise.py" else ()
        command = [sys.executable, ROOT / "scripts" / script, *arguments, *budget]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    demo = Path(__file__).with_name("run-config.toml").read_text()
    for name, place in (("model", "model"), ("tokens", "tokens")):
        assert f'"demo/{name}"' in demo
        demo = demo.replace(f'"demo/{name}"', json.dumps(str(root / place)))
    (root / "config.toml").write_text(demo)
    return root


@pytest.fixture(params=sorted(INDEX))
def command_name(request: pytest.FixtureRequest) -> str:
    """Every command, one after the other."""
    name: str = request.param
    return name
