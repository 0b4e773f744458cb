"""Tests that `doctor` finds problems, names their fixes, and repairs what it may."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from aftermath.chain.wallet import create_wallet, load_wallet
from aftermath.cli import findings, machine_checks, run_checks
from aftermath.cli.findings import Status, Subject
from aftermath.cli.run_checks import SKEW_SECONDS
from aftermath.p2p.iroh import IrohTransport
from cli.cli_runs import Shell, invoke
from member.result_inbox import SCHEMA
from p2p.real_relay import real_relay
from rules import builders

ALONE = {"python", "torch", "disk", "wallet", "udp", "relay", "hub-token", "memory"}
WITHOUT_NETWORK = ("unshare", "--user", "--map-root-user", "--net")


def test_finding_that_is_ok_shows_its_advice_as_hint() -> None:
    rows = [
        ("relay", findings.fine("none asked", "Name one")),
        ("disk", findings.broken("full", "Make room")),
    ]
    assert findings.as_text(rows).split("\n") == [
        "ok       relay: none asked",
        "         hint: Name one",
        "failure  disk: full",
        "         fix: Make room",
    ]


def examined(*arguments: str | Path | int) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the exit code, and the findings by the names of their checks."""
    outcome = invoke("doctor", "--device", "cpu", *arguments, "--json")
    data = json.loads(outcome.out)
    checks = {one["check"]: one for one in data["checks"]}
    assert len(checks) == len(data["checks"])
    assert data["ok"] == (outcome.code == 0)
    assert data["ok"] == all(one["status"] != "failure" for one in checks.values())
    assert all(one["fix"] for one in checks.values() if one["status"] == "failure")
    return outcome.code, checks


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)


def test_doctor_without_run_checks_machine(tmp_path: Path) -> None:
    create_wallet(tmp_path / "wallet.json")
    code, checks = examined("-w", tmp_path / "wallet.json")
    assert code == 0
    assert set(checks) == ALONE
    assert "--bind-p2p-port" in checks["udp"]["fix"]
    text = invoke("doctor", "--device", "cpu", "-w", tmp_path / "wallet.json").out
    for name, one in checks.items():
        assert f"{name}: " in text
        assert one["fix"] in text


def test_key_file_readable_by_others_is_fixed_on_request(tmp_path: Path) -> None:
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


def test_missing_wallet_is_skipped_unless_named(tmp_path: Path) -> None:
    code, checks = examined()
    assert (code, checks["wallet"]["status"]) == (0, "ok")
    assert checks["wallet"]["message"] == "skipped, because no wallet was given"
    code, checks = examined("-w", tmp_path / "none.json")
    assert (code, checks["wallet"]["status"]) == (1, "failure")


def test_doctor_taken_port_is_a_failure(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 0))
        code, checks = examined("--bind-p2p-port", taken.getsockname()[1])
    assert code == 1
    assert "already in use" in checks["udp"]["message"]
    assert "--bind-p2p-port" in checks["udp"]["fix"]


def test_doctor_taken_metrics_port_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, checks = examined("--metrics-port", port)
        assert (code, checks["metrics-port"]["status"]) == (1, "failure")
        assert str(port) in checks["metrics-port"]["message"]
        assert "--metrics-port" in checks["metrics-port"]["fix"]
    assert examined("--metrics-port", port)[1]["metrics-port"]["status"] == "ok"
    monkeypatch.setenv("METRICS_PORT", str(port))  # train reads the same variable
    assert "metrics-port" in examined()[1]


def test_doctor_unknown_interface_is_a_failure() -> None:
    for address, word in (("192.0.2.7", "cannot listen"), ("nowhere", "not a valid IPv4 address")):
        code, checks = examined("--bind-p2p-interface", address)
        assert (code, checks["udp"]["status"]) == (1, "failure")
        assert word in checks["udp"]["message"]
    assert "of 127.0.0.1" in examined("--bind-p2p-interface", "127.0.0.1")[1]["udp"]["message"]


def test_doctor_blocked_udp_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(IrohTransport, "reachable", lambda _: [])
    code, checks = examined()
    assert (code, checks["udp"]["status"]) == (1, "failure")
    assert "UDP is blocked" in checks["udp"]["message"]
    assert "firewall" in checks["udp"]["fix"]


@pytest.mark.slow
def test_doctor_udp_without_interfaces_is_a_failure() -> None:
    if subprocess.run([*WITHOUT_NETWORK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace may be made here")
    line = [
        *WITHOUT_NETWORK,
        sys.executable,
        "-m",
        "aftermath.cli.main",
        "doctor",
        "--device",
        "cpu",
        "--json",
    ]
    completed = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 1, completed.stderr
    (udp,) = [one for one in json.loads(completed.stdout)["checks"] if one["check"] == "udp"]
    assert "UDP is blocked" in udp["message"]
    assert "firewall" in udp["fix"]


def test_doctor_absent_relay_fails_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_checks, "RELAY_SECONDS", 0.5)
    code, checks = examined("--iroh-relay", "http://127.0.0.1:9")
    assert (code, checks["relay"]["status"]) == (1, "failure")
    assert f"within {machine_checks.RELAY_SECONDS} s" in checks["relay"]["message"]
    assert "TCP port 9" in checks["relay"]["fix"]


async def test_doctor_relay_without_handshake_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine_checks, "RELAY_SECONDS", 0.5)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /ping"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    subject = Subject("cpu", relay=url)
    finding = await machine_checks.relay(subject)
    server.close()
    assert finding.status is Status.FAILURE
    assert url in finding.message


def test_doctor_real_relay_is_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # iroh takes three seconds before it turns to a relay
    monkeypatch.setattr(machine_checks, "RELAY_SECONDS", 60.0)
    with real_relay(tmp_path / "relay") as url:
        code, checks = examined("--iroh-relay", url)
    assert (code, checks["relay"]["status"]) == (0, "ok")
    assert f"{url} accepts this machine" in checks["relay"]["message"]


def test_doctor_without_relay_advises_one() -> None:
    assert "directly" in examined("--iroh-relay", "disabled")[1]["relay"]["message"]
    assert "--iroh-relay n0" in examined()[1]["relay"]["fix"]
    assert invoke("doctor", "--iroh-relay", "nonsense").code == 2


@pytest.mark.parametrize(
    ("chosen", "addresses", "is_named", "status", "word"),
    [
        ("n0", None, False, "warning", "--iroh-relay URL"),
        ("n0", None, True, "failure", "TCP port 443"),
        ("https://r.example", None, True, "failure", "port 443"),
        ("http://r.example", None, True, "failure", "port 80"),
        ("n0", ["10.0.0.3:4", "[fe80::1%2]:4", "100.64.0.9:7"], False, "warning", "UDP"),
        ("http://r.example", ["10.0.0.3:4"], True, "ok", "enable_quic_addr_discovery"),
        ("n0", ["10.0.0.3:4", "8.8.8.8:44"], False, "ok", ""),
        ("n0", ["[2606:4700::1]:44"], False, "ok", ""),
    ],
)
def test_relay_view_of_addresses_names_how_peers_connect(
    chosen: str, addresses: list[str] | None, is_named: bool, status: str, word: str
) -> None:
    finding = machine_checks.relay_finding(chosen, addresses, is_named=is_named)
    assert (finding.status, bool(finding.fix)) == (status, bool(word))
    assert word in finding.fix
    if addresses and not word:
        assert addresses[-1] in finding.message


def test_doctor_missing_device_is_a_failure() -> None:
    outcome = invoke("doctor", "--device", "cuda:63", "--json")
    assert outcome.code == 1
    assert {one["check"]: one["status"] for one in json.loads(outcome.out)["checks"]}[
        "torch"
    ] == "failure"


async def test_doctor_hub_token_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            status=200 if request.headers["Authorization"] == "Bearer good" else 401
        )

    app = web.Application()
    app.router.add_get("/api/whoami-v2", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    subject = Subject("cpu")
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    statuses = {}
    for token in ("good", "bad"):
        monkeypatch.setenv("HF_TOKEN", token)
        statuses[token] = (await machine_checks.hub_token(subject)).status.value
    await runner.cleanup()
    statuses["away"] = (await machine_checks.hub_token(subject)).status.value
    assert statuses == {"good": "ok", "bad": "failure", "away": "warning"}


def test_doctor_low_disk_space_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_checks, "LEAST_DISK", 1 << 60)
    assert examined()[1]["disk"]["status"] == "warning"


def test_doctor_unmet_package_requirements_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    requirements = [
        "typer>=99",
        "no-such-package",
        "torch>=2.8",
        "nothing; extra == 'hf'",
        "solders<0.27,>=0.26",
    ]
    monkeypatch.setattr(machine_checks, "requires", lambda _: requirements)
    code, checks = examined()
    assert code == 1
    assert "but >=99 is required; no-such-package is not installed" in checks["python"]["message"]
    for fits in ("torch", "nothing", "solders"):
        assert fits not in checks["python"]["message"]


def test_doctor_unresponsive_cluster_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.cli.connection.PATIENCE_SECONDS", 0.2)
    code, checks = examined("--rpc", "http://127.0.0.1:9", "--run-id", "demo")
    assert code == 1
    assert checks["rpc"]["status"] == "failure"
    # reported once, because further checks would wait as long for the same answer
    assert checks.keys() == ALONE | {"rpc"}


@pytest.mark.slow
def test_doctor_run_checks_name_each_missing_step(
    owner: Shell, run_id: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a missing run to one that the wallet may join, every check names what is missing."""
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
    assert "waits for update-config by its owner" in checks["state"]["message"]
    assert (
        owner("update-config", "--run-id", run_id, "--config-path", run_dir / "config.toml").code
        == 0
    )
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    code, checks = examined(*line)
    assert code == 0, checks
    assert {one["status"] for one in checks.values()} == {"ok"}
    assert "tier 0 fits" in checks["memory"]["message"]
    needed = [
        float(text.split(" GB")[0])
        for text in checks["memory"]["message"].split("GB free")[1].split(": ")[1:4]
    ]
    assert needed == sorted(needed, reverse=True)
    assert (
        checks["access"]["message"]
        == f"the run reads {run_dir / 'model'} (model); reads {run_dir / 'tokens'} (data)"
    )

    code, checks = examined(*line, "--matformer-tier", 7)
    assert code == 1
    assert "has tiers 0 to 2" in checks["tier"]["message"]

    monkeypatch.setattr("aftermath.replica.memory.free_bytes", lambda _: 1000)
    assert "none fits" in examined(*line)[1]["memory"]["message"]

    now = time.time
    monkeypatch.setattr("aftermath.cli.run_checks.time.time", lambda: now() + 2 * SKEW_SECONDS)
    assert examined(*line)[1]["clock"]["status"] == "warning"


@pytest.mark.parametrize(("percent", "training"), [(6, "11% more training"), (0, None)])
def test_doctor_states_what_audits_cost(percent: int, training: str | None) -> None:
    rules = builders.config(verification_percent=percent, init_min_clients=8)
    view: Any = SimpleNamespace(run=SimpleNamespace(config=rules))
    subject: Any = SimpleNamespace(view=view, schema=SCHEMA)
    finding = run_checks.audits(subject)
    assert (finding is None) == (training is None)
    if finding is not None:
        assert finding.status == "ok"
        assert f"verification_percent 6 means about {training}" in finding.message


def test_doctor_run_of_other_client_version_is_a_failure(owner: Shell, run_id: str) -> None:
    assert owner("create-run", "--run-id", run_id, "--client-version", "9.9.9").code == 0
    code, checks = examined("--rpc", owner.rpc, "--run-id", run_id, "-w", owner.wallet)
    assert code == 1
    assert "9.9.9" in checks["version"]["message"]


def test_doctor_unauthorized_wallet_fix_names_both_ways(
    owner: Shell, run_id: str, tmp_path: Path
) -> None:
    """The fix names both ways: an authorization of its own, or one as a delegate. For a named
    grantee, it says what the grantee must do.
    """
    for name in ("grantor", "grantee"):
        create_wallet(tmp_path / f"{name}.json")
    assert (
        owner("create-run", "--run-id", run_id, "--join-authority", tmp_path / "grantor.json").code
        == 0
    )
    line = ("--rpc", owner.rpc, "--run-id", run_id, "-w", owner.wallet)
    fix = examined(*line)[1]["authorization"]["fix"]
    assert f"join-authorization-create --authorizer {load_wallet(owner.wallet).pubkey}; " in fix
    assert "if you are a delegate, pass --authorizer GRANTEE" in fix
    grantee = str(load_wallet(tmp_path / "grantee.json").pubkey)
    fix = examined(*line, "--authorizer", grantee)[1]["authorization"]["fix"]
    assert f"ask {grantee} to delegate to it: aftermath-solana join-authorization-delegate" in fix


def test_doctor_without_fix_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_wallet(tmp_path / "wallet.json")
    monkeypatch.chdir(tmp_path)
    examined("-w", tmp_path / "wallet.json")
    assert os.listdir(tmp_path) == ["wallet.json"]
