"""A real local network for the whole folder, a wallet for each test, and a small model
with tokens.
"""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import httpx
import httpx._transports.default as httpx_transports
import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.cli.data import Conversion, convert
from aftermath.testnet import files
from aftermath.testnet.chain import SOLANA
from cli.cli_runs import CONSOLE, Shell, invoke

ROOT = Path(__file__).parents[2]
SHAPE = [
    "--hidden",
    "64",
    "--layers",
    "2",
    "--heads",
    "4",
    "--kv-heads",
    "2",
    "--intermediate",
    "256",
]


@pytest.fixture(scope="session", autouse=True)
def _no_variables_of_the_user() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "RPC",
            "WS_RPC",
            "RUN_ID",
            "AUTHORIZER",
            "WALLET_PRIVATE_KEY_PATH",
            "RAW_WALLET_PRIVATE_KEY",
        ):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True)
def _own_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the wallet and caches of the person who runs the tests from commands."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="session", autouse=True)
def _one_tls_context() -> Iterator[None]:
    """Share one TLS context: httpx reads the system's certificates for each client, which is half
    of a command.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            httpx_transports, "create_ssl_context", functools.cache(httpx.create_ssl_context)
        )
        yield


@pytest.fixture(scope="session")
def rpc() -> Iterator[str]:
    """Return the RPC address of an `aftermath-solana localnet` on a free port."""
    process = subprocess.Popen(
        [CONSOLE, "localnet", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    output = ""
    while not output.endswith("}\n"):
        line = process.stdout.readline()
        assert line, "the local network ended before it was ready"
        output += line
    yield json.loads(output)["rpc"]
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


def new_user(rpc: str, place: Path) -> Shell:
    wallet = place / "owner.json"
    create_wallet(wallet)
    return Shell(rpc, wallet)


@pytest.fixture
def owner(rpc: str, tmp_path: Path) -> Shell:
    """Return a user with a new wallet, which the local network funds when needed."""
    return new_user(rpc, tmp_path)


@pytest.fixture
def run_id() -> str:
    """Return a run id for this test on the shared network. It differs if the test runs again."""
    return new_run_id()


def new_run_id() -> str:
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with an untrained model, tokens, and a config.toml that names both."""
    root = tmp_path_factory.mktemp("run_dir")
    assert invoke("model", "init", "--out", root / "model", *SHAPE).code == 0
    convert(Conversion(root / "tokens", budget_bytes=60_000))
    demo = Path(__file__).with_name("run-config.toml").read_text()
    for name, place in (("model", "model"), ("tokens", "tokens")):
        assert f'"demo/{name}"' in demo
        demo = demo.replace(f'"demo/{name}"', json.dumps(str(root / place)))
    (root / "config.toml").write_text(demo)
    return root


@pytest.fixture
def in_process_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make models and tokens in this process. `aftermath.testnet.files` would start a process for
    each command.
    """

    def call(line: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        assert line[: len(SOLANA)] == SOLANA
        outcome = invoke(*line[len(SOLANA) :])
        assert outcome.code == 0, outcome.err

    monkeypatch.setattr(files, "call", call)
