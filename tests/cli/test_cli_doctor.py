"""`doctor` finds what is wrong, says how to mend it, and mends what it may."""

from __future__ import annotations

import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.wallet import create_wallet
from aftermath.cli import checkup_machine
from aftermath.cli.checkup_chain import SKEW_SECONDS
from cli.cli_runs import Shell, invoke

ALONE = {"python", "torch", "disk", "wallet", "udp", "hub-token", "memory"}


def examined(*arguments: str | Path | int) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and every finding by the name of its check."""
    outcome = invoke("doctor", "--device", "cpu", *arguments, "--json")
    found = json.loads(outcome.out)
    checks = {one["check"]: one for one in found["checks"]}
    assert len(checks) == len(found["checks"])
    assert found["ok"] == (outcome.code == 0)
    assert found["ok"] == all(one["status"] != "failure" for one in checks.values())
    assert all(one["fix"] for one in checks.values() if one["status"] == "failure")
    return outcome.code, checks


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_the_machine_alone(tmp_path: Path) -> None:
    create_wallet(tmp_path / "wallet.json")
    code, checks = examined("-w", tmp_path / "wallet.json")
    assert code == 0
    assert set(checks) == ALONE
    assert "--bind-p2p-port" in checks["udp"]["fix"]
    text = invoke("doctor", "--device", "cpu", "-w", tmp_path / "wallet.json").out
    for name, one in checks.items():
        assert f"{name}: " in text
        assert one["fix"] in text


def test_a_key_file_that_others_read_is_mended_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "wallet.json"
    create_wallet(path)
    path.chmod(0o644)
    code, checks = examined("-w", path)
    assert code == 1
    assert checks["wallet"]["status"] == "failure"
    assert f"chmod 600 {path}" in checks["wallet"]["fix"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert examined("-w", path, "--fix")[0] == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_wallet_that_is_not_there_is_a_warning_until_it_is_needed(tmp_path: Path) -> None:
    code, checks = examined()
    assert (code, checks["wallet"]["status"]) == (0, "warning")
    code, checks = examined("-w", tmp_path / "none.json")
    assert (code, checks["wallet"]["status"]) == (1, "failure")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 0))
        code, checks = examined("--bind-p2p-port", taken.getsockname()[1])
    assert code == 1
    assert "already in use" in checks["udp"]["message"]
    assert "--bind-p2p-port" in checks["udp"]["fix"]


def test_a_device_that_is_not_there() -> None:
    outcome = invoke("doctor", "--device", "cuda:63", "--json")
    assert outcome.code == 1
    assert {one["check"]: one["status"] for one in json.loads(outcome.out)["checks"]}["torch"] == "failure"


async def test_what_the_hub_says_of_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers["Authorization"] == "Bearer good" else 401)

    app = web.Application()
    app.router.add_get("/api/whoami-v2", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    subject = checkup_machine.Subject("cpu", None, None, 0, mend=False)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    told = {}
    for token in ("good", "bad"):
        monkeypatch.setenv("HF_TOKEN", token)
        told[token] = (await checkup_machine.hub_token(subject)).status.value
    await runner.cleanup()
    told["away"] = (await checkup_machine.hub_token(subject)).status.value
    assert told == {"good": "ok", "bad": "failure", "away": "warning"}


def test_little_room_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup_machine, "LEAST_DISK", 1 << 60)
    assert examined()[1]["disk"]["status"] == "warning"


def test_packages_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["typer>=99", "no-such-package", "torch>=2.8", "nothing; extra == 'hf'", "solders<0.27,>=0.26"]
    monkeypatch.setattr(checkup_machine, "requires", lambda _: asked)
    code, checks = examined()
    assert code == 1
    assert "and >=99 is asked for; no-such-package is not installed" in checks["python"]["message"]
    for fits in ("torch", "nothing", "solders"):
        assert fits not in checks["python"]["message"]


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.cli.connection.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("aftermath.cli.checkup_chain.SOCKET_SECONDS", 0.2)
    code, checks = examined("--rpc", "http://127.0.0.1:9")
    assert code == 1
    assert checks["rpc"]["status"] == "failure"
    assert checks["websocket"]["status"] == "warning"


def test_a_run_and_what_it_asks(owner: Shell, run_id: str, material: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From no run to one that the wallet may join: every check says what is missing."""
    line = ("--rpc", owner.rpc, "--run-id", run_id, "-w", owner.wallet)
    code, checks = examined(*line)
    assert code == 1
    assert "there is no run" in checks["run"]["message"]
    for name in ("rpc", "websocket", "clock", "balance"):
        assert checks[name]["status"] == "ok", checks[name]
    assert " ms" in checks["rpc"]["message"]
    assert owner("create-run", "--run-id", run_id).code == 0
    code, checks = examined(*line)
    assert code == 1
    assert "its owner configures it" in checks["admission"]["message"]
    assert owner("update-config", "--run-id", run_id, "--config-path", material / "config.toml").code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    code, checks = examined(*line)
    assert code == 0, checks
    assert {one["status"] for one in checks.values()} == {"ok"}
    assert "tier 0 fits" in checks["memory"]["message"]

    code, checks = examined(*line, "--matformer-tier", 7)
    assert code == 1
    assert "has tiers 0 to 2" in checks["model"]["message"]
    needed = [float(text.split(" GB")[0]) for text in checks["memory"]["message"].split("GB free")[1].split(": ")[1:4]]
    assert needed == sorted(needed, reverse=True)

    monkeypatch.setattr("aftermath.replica.memory.free_bytes", lambda _: 1000)
    assert "none fits" in examined(*line)[1]["memory"]["message"]

    now = time.time
    monkeypatch.setattr("aftermath.cli.checkup_chain.time.time", lambda: now() + 2 * SKEW_SECONDS)
    assert examined(*line)[1]["clock"]["status"] == "warning"


def test_a_run_for_another_client(owner: Shell, run_id: str) -> None:
    assert owner("create-run", "--run-id", run_id, "--client-version", "9.9.9").code == 0
    code, checks = examined("--rpc", owner.rpc, "--run-id", run_id, "-w", owner.wallet)
    assert code == 1
    assert "9.9.9" in checks["run"]["message"]


def test_nothing_is_written_without_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_wallet(tmp_path / "wallet.json")
    monkeypatch.chdir(tmp_path)
    examined("-w", tmp_path / "wallet.json")
    assert os.listdir(tmp_path) == ["wallet.json"]
