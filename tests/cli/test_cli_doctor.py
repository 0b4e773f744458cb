"""`doctor` finds what is wrong with a machine, a cluster and a run, and says nothing worse where nothing is."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from solders.keypair import Keypair

from aftermath.chain.wallet import create_wallet
from aftermath.cli import look_at_chain
from aftermath.replica import footprint, memory
from cli.cli_runs import Outcome, Shell, invoke
from cli.test_cli_bad_input import ELSEWHERE


def findings(outcome: Outcome) -> dict[str, list[dict[str, str]]]:
    """What was found, by check."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(outcome.out)["checks"]:
        found.setdefault(one["check"], []).append(one)
    return found


def examined(*arguments: str | Path | int) -> dict[str, list[dict[str, str]]]:
    return findings(invoke("doctor", "--device", "cpu", *arguments, "--json"))


def standing(found: dict[str, list[dict[str, str]]], check: str) -> list[str]:
    return [one["standing"] for one in found[check]]


@pytest.fixture
def wallet(tmp_path: Path) -> Path:
    create_wallet(tmp_path / "wallet.json")
    return tmp_path / "wallet.json"


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("0.0.0.0", 0))
        yield taken.getsockname()[1]


def test_a_machine_alone(wallet: Path) -> None:
    outcome = invoke("doctor", "--device", "cpu", "-w", wallet, "--json")
    assert outcome.code == 0, outcome.out
    found = findings(outcome)
    assert {"python", "packages", "device", "memory", "disk", "wallet", "hub token", "port", "udp"} <= set(found)
    assert not {"rpc", "run", "funds"} & set(found)
    assert standing(found, "udp") == ["ok"]
    assert "spoke with each other" in found["udp"][0]["said"]
    assert standing(found, "reachability") == ["unknown"]


def test_a_wallet_that_others_can_read_is_mended_when_asked(wallet: Path) -> None:
    wallet.chmod(0o644)
    (said,) = examined("-w", wallet)["wallet"]
    assert said["standing"] == "warning"
    assert "0644" in said["said"]
    assert f"chmod 600 {wallet}" in said["fix"]
    assert wallet.stat().st_mode & 0o777 == 0o644
    (said,) = examined("-w", wallet, "--fix")["wallet"]
    assert said["standing"] == "ok"
    assert wallet.stat().st_mode & 0o777 == 0o600


def test_another_file_is_not_mended(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a key")
    other.chmod(0o644)
    outcome = invoke("doctor", "--device", "cpu", "-w", other, "--fix", "--json")
    assert outcome.code == 1
    assert standing(findings(outcome), "wallet") == ["failure"]
    assert other.stat().st_mode & 0o777 == 0o644


def test_what_is_wrong_with_a_machine(wallet: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    outcome = invoke("doctor", "--device", "mps", "-w", wallet, "--bind-p2p-port", taken_port)
    assert outcome.code == 1
    assert "this machine has no MPS device" in outcome.out
    assert f"UDP port {taken_port} cannot be had" in outcome.out
    assert "HF_TOKEN is not what a token looks like" in outcome.out
    assert "hunter2" not in outcome.out


def test_a_relay_that_does_not_answer(wallet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aftermath.cli.look_at_peers.RELAY_SECONDS", 0.5)
    found = examined("-w", wallet, "--iroh-relay", "http://127.0.0.1:9")
    assert standing(found, "reachability") == ["failure"]
    assert found["reachability"][0]["said"].startswith("blocked")


@pytest.fixture
def ready(owner: Shell, run_id: str, material: Path) -> Shell:
    """The owner of a run that takes members."""
    assert owner("create-run", "--run-id", run_id).code == 0
    assert owner("update-config", "--run-id", run_id, "--config-path", material / "config.toml").code == 0
    assert owner("set-paused", "--run-id", run_id, "resume").code == 0
    return owner


def test_a_run_that_may_be_joined(ready: Shell, run_id: str) -> None:
    outcome = ready("doctor", "--run-id", run_id, "--device", "cpu")
    assert outcome.code == 0, outcome.out
    found = findings(outcome)
    for check in ("rpc", "websocket", "clock", "program", "version", "authorization", "funds", "run", "tier"):
        assert standing(found, check) == ["ok"], found[check]


def test_it_names_the_tier_that_fits(ready: Shell, run_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(free: int) -> dict[str, str]:
        monkeypatch.setattr(memory, "free_bytes", lambda device: free)
        (said,) = findings(ready("doctor", "--run-id", run_id, "--device", "cpu"))["tier"]
        return said

    needs: list[int] = []
    real = footprint.largest_that_fits

    def noted(tiers: int, free: int, of: Callable[[int], footprint.Footprint]) -> footprint.Footprint | None:
        needs[:] = [of(tier).needed for tier in range(tiers)]
        return real(tiers, free, of)

    monkeypatch.setattr(footprint, "largest_that_fits", noted)
    assert told(10**12)["standing"] == "ok"
    assert needs == sorted(needs, reverse=True)
    assert "--matformer-tier 1 is the largest that fits" in told(needs[1])["fix"]
    assert "no tier of this run fits" in told(needs[-1] - 1)["said"]


def test_what_is_wrong_with_a_run(ready: Shell, run_id: str, tmp_path: Path) -> None:
    assert ready("set-paused", "--run-id", run_id, "pause").code == 0
    poor = Shell(ready.rpc, tmp_path / "poor.json")
    poor.wallet.write_text(Keypair().to_json())
    poor.wallet.chmod(0o600)
    outcome = poor("doctor", "--run-id", run_id, "--matformer-tier", "7", "--device", "cpu", "--rpc-2", ELSEWHERE)
    assert outcome.code == 1
    found = findings(outcome)
    assert standing(found, "funds") == ["failure"]
    assert standing(found, "authorization") == ["failure"]
    assert "is paused" in found["authorization"][0]["said"]
    assert standing(found, "rpc") == ["ok", "failure"]
    assert ready("update-config", "--run-id", run_id, "--client-version", "9.9.9").code == 0
    assert poor("doctor", "--run-id", run_id, "--device", "cpu").code == 10


def test_a_clock_that_is_wrong(ready: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(look_at_chain.time, "time", lambda: real() - 3600)
    (said,) = findings(ready("doctor", "--device", "cpu"))["clock"]
    assert said["standing"] == "warning"
    assert "behind the chain's" in said["said"]
    assert "NTP" in said["fix"]


def test_no_node_answers(wallet: Path) -> None:
    outcome = invoke("doctor", "--device", "cpu", "-w", wallet, "--rpc", "http://127.0.0.1:9", "--json")
    assert outcome.code == 1
    assert standing(findings(outcome), "rpc") == ["failure"]
