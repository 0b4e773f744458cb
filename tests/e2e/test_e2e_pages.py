"""Tests that run the command lines of the owner, provider and researcher pages unchanged.

Only the network's address, and that members stay on this machine, comes from the environment. The
config that `init` wrote gets smaller limits, and a comparison gets fewer steps.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from xprocess import XProcess

from docs.test_docs import FENCE
from e2e.event_log import EventLog, compare_replicas
from e2e.processes import PATIENCE, Running, until
from e2e.run_inputs import ROOT
from e2e.wheel_install import Installed, without_us

# The slow tests follow the same pages in one process (tests/cli/test_cli_page_commands.py).
pytestmark = pytest.mark.nightly
INSTALLING = ["make env", ". .venv/bin/activate"]
SMALLER = {
    "rounds_per_epoch": 20,
    "warmup_time": 30,
    "global_batch_size_start": 32,
    "global_batch_size_end": 32,
}
"""The values of the shipped recipe. The test uses a quarter of each."""


def page_commands(page: str, heading: str) -> Iterator[str]:
    """Return the lines of the shell blocks under a heading of a page, with continuations joined."""
    text = (ROOT / "docs" / page).read_text()
    _, separator, rest = text.partition(f"\n## {heading}\n")
    assert separator, f"{page} has no {heading!r}"
    for language, body in FENCE.findall(rest.partition("\n## ")[0]):
        if language == "sh":
            yield from (
                re.sub(" {2,}", " ", line) for line in body.replace("\\\n", " ").splitlines()
            )


@dataclass
class ShellUser:
    """A user in a shell on this machine, with the package installed."""

    place: Path
    variables: dict[str, str]
    starter: XProcess
    left: list[Running] = field(default_factory=list)

    def run(self, line: str) -> str:
        """Run a command, which must succeed, and return its output."""
        completed = subprocess.run(
            ["bash", "-c", line],
            cwd=self.place,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert completed.returncode == 0, (
            f"{line}\n{completed.stdout[-2000:]}{completed.stderr[-2000:]}"
        )
        return completed.stdout

    def start(self, line: str, ready: str | None = None) -> Running:
        """Start a command that runs until Ctrl-C."""
        enter = [
            sys.executable,
            "-c",
            "import os, sys; os.chdir(sys.argv[1]); os.execvp('bash', sys.argv[2:])",
        ]
        words: list[str | Path] = [*enter, self.place, "bash", "-c", f"exec {line}"]
        self.left.append(Running(self.starter, line.split()[1], words, self.variables, ready))
        return self.left[-1]

    def stop(self, process: Running) -> None:
        """End a running command with Ctrl-C."""
        process.interrupt(60)
        assert process.code in (0, 128 + signal.SIGINT), process.last_lines


@pytest.fixture
def user(installed: Installed, xprocess: XProcess, tmp_path: Path) -> Iterator[ShellUser]:
    own = without_us() | {
        "PATH": f"{installed.scripts}:{without_us()['PATH']}",
        "AFTERMATH_PROFILE": str(tmp_path / "profile.toml"),
        "BIND_P2P_INTERFACE": "127.0.0.1",
        "IROH_RELAY": "disabled",
        "DEVICE": "cpu",
    }
    user = ShellUser(tmp_path, own, xprocess)
    installed.python(
        "-c", "from aftermath.kernels.runtime import unavailable_reason; unavailable_reason()"
    )  # compiled once for all of them
    yield user
    for process in user.left:
        if process.code is None:
            process.kill()


def at_network(user: ShellUser, line: str) -> None:
    """Start the network with the page's line on free ports, and let all further commands find
    it.
    """
    network = user.start(f"{line} --port 0 --slot-ms 50", ready="localnet ready")
    match = re.search(r"rpc=(\S+) ws=(\S+)", network.output)
    assert match is not None, network.output
    user.variables |= {"RPC": match[1], "WS_RPC": match[2]}


def test_owner_and_provider_pages_complete_whole_run(user: ShellUser) -> None:
    """Follow the pages for an owner, for a provider and for a user of the model."""
    network, *lines = page_commands("owner.md", "The first time, on this machine alone")
    at_network(user, network)
    for line in lines:
        user.run(line)
        if line.startswith("aftermath-solana init"):
            make_smaller(user.place / "mine.toml")

    *installing, identity, doctor = page_commands("provider.md", "Install")
    assert installing == INSTALLING == list(page_commands("owner.md", "Install"))[:2]
    user.run(identity)
    user.run(doctor)
    for line in page_commands("provider.md", "Can I join?"):
        user.run(line)
    predownload, train = page_commands("provider.md", "Take part")
    user.run(predownload)
    user.run("aftermath-solana show-identity --create -w keeper.json")
    keeping = "--matformer-tier 0 --checkpoint-dir runs/mine/checkpoints"
    assert keeping in " ".join((ROOT / "docs" / "provider.md").read_text().split())
    provider = user.start(train)
    keeper = user.start(
        f"aftermath-solana train --run-id mine -w keeper.json --events-dir kept/events {keeping}"
    )

    def watched() -> None:
        provider.check()
        keeper.check()

    checkpoints = user.place / "runs" / "mine" / "checkpoints"
    (checkpoint,) = until(
        lambda: sorted(checkpoints.glob("mine-step*"))[:1],
        "the keeper keeps the model",
        watched=watched,
    )
    watch, observe = page_commands("owner.md", "While it trains")
    user.stop(user.start(watch, ready="step"))
    user.stop(user.start(f"{observe} --port 0", ready="http://127.0.0.1"))
    tail, plot = page_commands("provider.md", "Stay")
    user.stop(user.start(tail, ready="applied"))
    user.run(plot)
    assert (user.place / "loss.svg").read_text().startswith("<?xml")
    until(
        lambda: user.run("aftermath-solana show-run --run-id mine").count("training"),
        "an epoch runs",
        watched=watched,
    )

    for line in page_commands("owner.md", "What comes out"):
        if "model push" not in line:  # to the Hub
            user.run(line.replace("mine-step60", checkpoint.name))
    assert (
        compare_replicas(
            {"provider": event_log(user, "runs/mine"), "keeper": event_log(user, "kept")}
        )
        > 0
    )

    user.stop(provider)
    user.stop(keeper)
    for line in page_commands("owner.md", "The end"):
        user.run(line)
    for line in page_commands("provider.md", "Leave"):
        user.run(line)
    assert "mine" not in user.run("aftermath-solana list-runs")


def event_log(user: ShellUser, where: str) -> EventLog:
    return EventLog(user.place / where / "events")


def make_smaller(config: Path) -> None:
    """Use a quarter of the batch, epoch and warm-up, so that the run takes a few minutes."""
    text = config.read_text()
    for key, value in SMALLER.items():
        text, count = re.subn(rf"(?m)^{key} = {value}$", f"{key} = {value // 4}", text)
        assert count == 1, key
    config.write_text(text)


def test_researcher_page_comparison_runs(user: ShellUser) -> None:
    """Run in a checkout, which that page assumes."""
    for name in ("scripts", "config", "client", "benchmarks"):
        (user.place / name).symlink_to(ROOT / name)
    assert list(page_commands("researcher.md", "Install")) == INSTALLING
    for line in page_commands("researcher.md", "The first comparison"):
        line = line.replace("--steps 40", "--steps 8")
        if not line.startswith("jq") or shutil.which("jq"):
            user.run(line)
    for arm in ("adamw", "sparseloco"):
        *_, last = (user.place / "runs" / "lab" / arm / "events.jsonl").read_text().splitlines()
        assert set(json.loads(last)["held_out_by_tier"]) >= {"0"}
        assert (user.place / "runs" / "lab" / arm / "loss.png").exists()
