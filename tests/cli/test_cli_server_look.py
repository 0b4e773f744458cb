"""Tests of `show-run` and `watch` of `aftermath-centralized` against a server process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from solders.keypair import Keypair

from aftermath.chain.member import SolanaMember
from aftermath.chain.wallet import Wallet
from aftermath.server import client_backend
from aftermath.server.client_backend import ServerRpcPool
from aftermath.server.connection import ServerConnection
from aftermath.server.index import CENTRALIZED
from cli.cli_lone_member import quick_config
from cli.cli_runs import Outcome, invoke_during, invoke_ending, press_ctrl_c

SCRIPT = [sys.executable, "-m", "aftermath.server"]
RUN = "looked-at"
LISTED = bytes([7]) * 32
UNLISTED = bytes([8]) * 32


@dataclass
class Server:
    """The server's address, and the key file of an admitted identity."""

    address: str
    key: Path

    def arguments(self, command: str, *further: str | Path, run_id: str = RUN) -> list[str | Path]:
        return [
            *command.split(),
            "--run-id",
            run_id,
            "--server-addr",
            self.address,
            "-i",
            self.key,
            *further,
        ]

    def __call__(self, command: str, *further: str | Path, run_id: str = RUN) -> Outcome:
        return invoke_ending(
            *self.arguments(command, *further, run_id=run_id), script=CENTRALIZED.app
        )


def key_file(path: Path, secret: bytes) -> Path:
    path.write_bytes(secret)
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def server_process(
    run_dir: Path, tmp_path: Path, *before: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Start a server process for the run, wait until it is ready, and return it with its port.
    `before` precedes its command.
    """
    config = quick_config(run_dir, tmp_path)
    config.write_text(f'run_id = "{RUN}"\n{config.read_text()}')
    (tmp_path / "listed").write_text(f"{Keypair.from_seed(LISTED).pubkey()}\n")
    words = ["--host", "127.0.0.1", "-s", "0", "--tui", "false", "--allow", tmp_path / "listed"]
    line = [*before, *SCRIPT, "server", "run", "--state", config, *words]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            output = ""
            while not (match := re.search(r"server ready run=\S+ port=(\d+)", output)):
                line_read = process.stdout.readline()
                assert line_read, output
                output += line_read
            yield process, int(match[1])
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tmp_path = tmp_path_factory.mktemp("server")
    with server_process(run_dir, tmp_path) as (_, port):
        yield Server(f"127.0.0.1:{port}", key_file(tmp_path / "listed.key", LISTED))


async def join(address: str) -> None:
    """Join the run as a member, and leave."""
    wallet = Wallet(Keypair.from_seed(LISTED))
    link = ServerConnection(address, None, RUN, wallet, Keypair())
    async with (
        ServerRpcPool(link, patience=20.0, seed=0) as pool,
        SolanaMember(pool, wallet, RUN, client_version="") as chain,
    ):
        schema_hash = (await chain.view()).model.schema_hash
        await chain.join(
            p2p=wallet.public, tier=0, weight=1, schema_hash=schema_hash, stateless=True
        )


def test_show_run_and_watch_of_server_run_match_cluster(server: Server) -> None:
    before = server("show-run", "--json").data
    assert (before["run_id"], before["state"], before["members"]) == (
        RUN,
        "waiting_for_members",
        [],
    )

    def join_and_ctrl_c(shows: Callable[[str], None]) -> None:
        shows(before["waits"][0])
        asyncio.run(join(server.address))
        shows("1 of at least")
        press_ctrl_c()

    watched = invoke_during(
        join_and_ctrl_c, *server.arguments("watch", "--json"), script=CENTRALIZED.app
    )
    assert watched.code == 0
    first, second = (json.loads(line) for line in watched.out.splitlines())
    assert first["waits"] == before["waits"] != second["waits"]
    text = server("show-run").out
    assert str(Keypair.from_seed(LISTED).pubkey()) in text
    assert f"{RUN}" in text


def test_can_join_at_server_answers_and_names_next_command(server: Server, tmp_path: Path) -> None:
    joins = server("can-join", "--matformer-tier", "1", "--json")
    data = json.loads(joins.out)
    assert (joins.code, data["can_join"], data["reasons"]) == (0, True, [])
    assert data["address"] == str(Keypair.from_seed(LISTED).pubkey())
    command = f"aftermath-centralized client train --run-id {RUN} --server-addr {server.address} -i {server.key}"
    assert (
        f"next: {command} --matformer-tier 1\n" in server("can-join", "--matformer-tier", "1").err
    )
    assert (
        f"next: {command} --matformer-tier 0 --checkpoint-dir runs/{RUN}/checkpoints\n"
        in server("can-join").err
    )
    stranger = server("can-join", "--json", "-i", key_file(tmp_path / "unlisted.key", UNLISTED))
    assert (stranger.code, json.loads(stranger.out)["codes"]) == (11, ["not-admitted"])
    assert server("client train", "-i", tmp_path / "unlisted.key").code == 11


def test_predownload_and_doctor_at_server_find_run_and_files(server: Server) -> None:
    fetched = server("predownload", "--matformer-tier", "1", "--json").data
    assert (fetched["run_id"], fetched["tier"], fetched["sequences"] > 0) == (RUN, 1, True)
    checks = {one["check"]: one for one in server("doctor", "--json").data["checks"]}
    assert [
        checks[name]["status"] for name in ("server", "clock", "run", "authorization", "model")
    ] == ["ok"] * 5
    assert "accepts the key" in checks["server"]["message"]
    assert "wallet" not in checks
    assert "balance" not in checks


@pytest.mark.slow
def test_show_run_and_watch_refusals_have_fix(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in ("show-run", "watch"):
        other = server(command, "--json", run_id="other").error
        assert (other["code"], f"--run-id {RUN}" in other["fix"]) == ("server-refused", True)
    other_run = server("client train", "--logs", "json", run_id="other")
    started = json.loads(other_run.out.splitlines()[0])
    assert (started["wallet"], started["key"]) == (
        str(Keypair.from_seed(LISTED).pubkey()),
        "identity",
    )
    assert "serves the run" in other_run.err
    stranger = server("show-run", "--json", "-i", key_file(tmp_path / "unlisted.key", UNLISTED))
    assert stranger.code == 11
    refusal = json.loads(stranger.err)
    assert refusal["code"] == "not-admitted"
    assert "--allow" in refusal["fix"]
    assert server("show-run", "--json", "--tls-ca", server.key).code == 2
    monkeypatch.setattr(client_backend, "PATIENCE_SECONDS", 0.5)
    away = Server("127.0.0.1:9", server.key)
    assert away("show-run", "--json").error["code"] == "unavailable"
    assert "--server-addr" in away("watch", "--json").error["fix"]
    assert Server("nowhere", server.key)("show-run").code == 2


@pytest.mark.slow
def test_server_with_ignored_sigint_stops_on_sigint(run_dir: Path, tmp_path: Path) -> None:
    """A script that starts it with `&` makes it ignore SIGINT."""
    ignoring = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
    with server_process(run_dir, tmp_path, *ignoring) as (process, _):
        process.send_signal(signal.SIGINT)
        stdout, _ = process.communicate(timeout=60)
        assert process.returncode == 0
    assert "the server stops: " in stdout
