"""Tests that run the services of compose.yaml as processes of this machine, with the file's
commands, health checks and order.

They do not cover Docker itself: the image, volumes, and restrictions of containers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from xprocess import XProcess

from aftermath.localnet.free_ports import free_ports
from e2e.event_log import EventLog, compare_replicas
from e2e.processes import Running, until
from service.compose_file import ROOT, Service, services
from service.test_service_files import DOCKERFILE, MEMBERS

# A hundred CPU seconds. tests/service checks each command of the file in the fast tests, and other
# end-to-end tests kill members in the slow ones.
pytestmark = pytest.mark.nightly
IMAGE_HEALTH: list[str] = json.loads(
    DOCKERFILE.split("HEALTHCHECK")[1].split("CMD ")[1].splitlines()[0]
)


class Machine:
    """Stands in for the containers: volumes are directories here, and ports are replaced by free
    ones.
    """

    def __init__(self, xprocess: XProcess, place: Path) -> None:
        self._xprocess = xprocess
        self.place = place
        rpc = free_ports("127.0.0.1", 2)
        metrics = free_ports("127.0.0.1", 5)
        self._ports = {
            "8899": rpc,
            "8600": metrics,
            "9100": metrics + 1,
            "9101": metrics + 2,
            "9102": metrics + 3,
        }
        self.url = f"http://127.0.0.1:{metrics}"
        for name in ("keys", "state"):
            (place / name).mkdir(mode=0o700)
        shutil.copytree(ROOT / "config" / "demo", place / "config" / "demo")

    def environment(self, service: Service) -> dict[str, str]:
        own = {"RPC": f"http://127.0.0.1:{self._ports['8899']}", "OMP_NUM_THREADS": "1"}
        own["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return own | {name: self._here(value) for name, value in service.environment.items()}

    def _here(self, word: str) -> str:
        for port, ours in self._ports.items():
            word = word.replace(port, str(ours))
        for name in ("keys", "config"):
            word = word.replace(f"/{name}/", f"{self.place}/{name}/")
        return word.replace("0.0.0.0", "127.0.0.1")

    def start(self, service: Service) -> Running:
        enter = [
            sys.executable,
            "-c",
            "import os, sys; os.chdir(sys.argv[1]); os.execvp(sys.argv[2], sys.argv[2:])",
        ]
        line = [*enter, str(self.place / "state"), *(self._here(word) for word in service.command)]
        return Running(self._xprocess, service.name, line, self.environment(service))

    def well(self, service: Service) -> bool:
        """Return whether the service passes its health check."""
        line = [self._here(word) for word in service.health or IMAGE_HEALTH]
        own = os.environ | self.environment(service)
        return subprocess.run(line, env=own, capture_output=True, check=False).returncode == 0


def shorter(config: Path) -> None:
    """Change the run to fewer and smaller steps on a smaller text."""
    text = config.read_text()
    changes = [("total_steps", 48, 24), ("rounds_per_epoch", 24, 8)]
    changes += [("global_batch_size_start", 48, 12), ("global_batch_size_end", 48, 12)]
    for key, old, new in changes:
        assert f"\n{key} = {old}\n" in text
        text = text.replace(f"\n{key} = {old}\n", f"\n{key} = {new}\n")
    config.write_text(text)
    files = config.with_suffix(".files.toml")
    files.write_text(files.read_text().replace("budget-bytes = 2000000", "budget-bytes = 400000"))


def test_compose_run_with_killed_member_finishes(xprocess: XProcess, tmp_path: Path) -> None:
    machine = Machine(xprocess, tmp_path)
    them = services()
    shorter(tmp_path / "config" / "demo" / "config.toml")
    localnet = machine.start(them["localnet"])
    until(lambda: machine.well(them["localnet"]), "the network is healthy", watched=localnet.check)
    assert {*them["owner"].after.items()} == {("localnet", "service_healthy")}
    for _ in range(2):  # the second time, as after `docker compose up` again, changes nothing
        owner = machine.start(them["owner"])
        assert owner.wait() == 0, owner.last_lines
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()} == {0o600}
    running = {name: machine.start(them[name]) for name in (*MEMBERS, "observer")}
    event_logs = {name: EventLog(tmp_path / "state" / "events" / name) for name in MEMBERS}

    def watched() -> None:
        for process in (localnet, *running.values()):
            process.check()

    until(
        lambda: all(event_log.events_of("applied") for event_log in event_logs.values()),
        "all train",
        watched=watched,
    )
    for name in running:
        assert machine.well(them[name]), name
    victim = running["member-1"]
    victim.expected = False
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    assert not machine.well(them["member-1"])
    running["member-1"] = machine.start(them["member-1"])  # on-failure
    for name in MEMBERS:
        assert running[name].wait() == 0, running[name].last_lines
    starts = event_logs["member-1"].events_of("started")
    assert [start["wallet"] for start in starts] == [starts[0]["wallet"]] * 2, "who it was before"
    assert all(event_log.events_of("finished") for event_log in event_logs.values())
    assert compare_replicas(event_logs) > 24
    assert machine.well(them["localnet"])
    assert any((tmp_path / "state" / "checkpoints").iterdir())
