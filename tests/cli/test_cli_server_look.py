"""`show-run` and `watch` of `aftermath-centralized`, against a server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from aftermath.central.link import Link
from aftermath.central.reach import CentralPool
from aftermath.chain.member import SolanaMember
from aftermath.chain.wallet import Wallet
from aftermath.localnet.free_ports import free_ports
from cli.cli_lone_member import quick_config

SCRIPT = [sys.executable, "-m", "aftermath.central"]
RUN = "looked-at"
LISTED, UNLISTED = bytes([7]) * 32, bytes([8]) * 32


@dataclass
class Server:
    """Where it listens, and the key file of whom it lets in."""

    address: str
    key: Path
    process: subprocess.Popen[str]

    def line(self, command: str, *words: str | Path, run_id: str = RUN) -> list[str | Path]:
        return [*SCRIPT, *command.split(), "--run-id", run_id, "--server-addr", self.address, "-i", self.key, *words]

    def __call__(self, command: str, *words: str | Path, run_id: str = RUN) -> subprocess.CompletedProcess[str]:
        line = self.line(command, *words, run_id=run_id)
        return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def key_file(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@pytest.fixture
def server(material: Path, tmp_path: Path) -> Iterator[Server]:
    config = quick_config(material, tmp_path)
    config.write_text(f'run_id = "{RUN}"\n{config.read_text()}')
    (tmp_path / "listed").write_text(f"{Keypair.from_seed(LISTED).pubkey()}\n")
    words = ["--host", "127.0.0.1", "-s", "0", "--tui", "false", "--allow", tmp_path / "listed"]
    line = [*SCRIPT, "server", "run", "--state", config, *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = ""
        while not (found := re.search(r"server ready run=\S+ port=(\d+)", said)):
            line_read = process.stdout.readline()
            assert line_read, said
            said += line_read
        yield Server(f"127.0.0.1:{found[1]}", key_file(tmp_path / "listed.key", LISTED), process)
        process.kill()


async def join(address: str) -> None:
    """A member of the run, who asks for a place and goes."""
    wallet = Wallet(Keypair.from_seed(LISTED))
    link = Link(address, None, RUN, wallet, Keypair())
    async with (
        CentralPool(link, patience=20.0, seed=0) as pool,
        SolanaMember(pool, wallet, RUN, client_version="") as chain,
    ):
        schema_hash = (await chain.view()).model.schema_hash
        await chain.join(p2p=wallet.public, tier=0, weight=1, schema_hash=schema_hash, stateless=True)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 1, done.stdout
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    assert found["fix"]
    return found


def test_the_run_of_a_server_is_shown_and_followed_as_one_of_a_cluster_is(server: Server) -> None:
    before = json.loads(server("show-run", "--json").stdout)
    assert (before["run_id"], before["state"], before["members"]) == (RUN, "waiting_for_members", [])
    with subprocess.Popen(server.line("watch", "--json"), stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["waits"] == before["waits"]
            asyncio.run(join(server.address))
            assert json.loads(watching.stdout.readline())["waits"] != before["waits"]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == 0
        finally:
            watching.kill()
    text = server("show-run").stdout
    assert str(Keypair.from_seed(LISTED).pubkey()) in text
    assert f"{RUN}" in text


def test_what_keeps_somebody_from_looking_is_said(server: Server, tmp_path: Path) -> None:
    for command in ("show-run", "watch"):
        other = told(server(command, "--json", run_id="other"))
        assert (other["code"], f"--run-id {RUN}" in other["fix"]) == ("server-refused", True)
    other_run = server("client train", "--logs", "json", run_id="other")
    started = json.loads(other_run.stdout.splitlines()[0])
    assert (started["wallet"], started["key"]) == (str(Keypair.from_seed(LISTED).pubkey()), "identity")
    assert "keeps the run" in other_run.stderr
    stranger = server("show-run", "--json", "-i", key_file(tmp_path / "unlisted.key", UNLISTED))
    assert told(stranger)["code"] == "server-refused"
    assert "--allow" in told(stranger)["fix"]
    assert server("show-run", "--json", "--tls-ca", tmp_path / "listed").returncode == 2
    away = Server(f"127.0.0.1:{free_ports('127.0.0.1', 1)}", server.key, server.process)
    assert (told(away("show-run", "--json"))["code"], "--server-addr" in told(away("watch", "--json"))["fix"]) == (
        "unavailable",
        True,
    )
    assert Server("nowhere", server.key, server.process)("show-run").returncode == 2
