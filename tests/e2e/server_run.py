"""A run on a centralized server as real processes: the server, which can be killed, and its
members.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from solders.keypair import Keypair
from xprocess import XProcess

from aftermath.localnet.free_ports import free_ports
from e2e.event_log import EventLog
from e2e.processes import PATIENCE, Running, until
from e2e.run_inputs import RunInputs

SCRIPT = [sys.executable, "-m", "aftermath.server"]
RUN = "central"


@dataclass(frozen=True)
class ServerRunOptions:
    """The server's address, and additional options for the server and its members. `on`: words
    before a member's command.
    """

    host: str = "127.0.0.1"
    server: Sequence[str] = ()
    member: Sequence[str] = ("--bind-p2p-interface", "127.0.0.1")
    on: Sequence[Sequence[str]] = field(default_factory=lambda: [[], [], []])


class ServerRun:
    """A server with one state directory, and its members, which share no discovery directory."""

    def __init__(
        self,
        xprocess: XProcess,
        place: Path,
        run_inputs: RunInputs,
        options: ServerRunOptions,
        **rules: int,
    ) -> None:
        self._xprocess = xprocess
        self._place = place
        self._options = options
        self._state = self._files(run_inputs, **rules)
        self.members: dict[str, Running] = {}
        self.event_logs: dict[str, EventLog] = {}
        self.identities: dict[str, str] = {}
        self.port = "0"
        self.start_server()
        ready_line = re.search(r"server ready run=(\w+) port=(\d+)", self.server.output)
        assert ready_line is not None
        assert ready_line[1] == RUN
        self.port = ready_line[2]

    def _files(self, run_inputs: RunInputs, **rules: int) -> Path:
        """Write state.toml and data.toml: the run's tokens come from the server's data server."""
        text = run_inputs.config(self._place, one_bit=True, **rules).read_text()
        local = f"data_location = {{ Local = {json.dumps(str(run_inputs.tokens))} }}"
        host = self._options.host
        assert local in text
        served = f'data_location = {{ Server = "{host}:{free_ports(host, 1)}" }}'
        state = self._place / "state.toml"
        state.write_text(f'run_id = "{RUN}"\n{text.replace(local, served)}')
        (self._place / "data.toml").write_text(
            f"dir = {json.dumps(str(run_inputs.tokens))}\nseq_len = 32\n"
        )
        return state

    def start_server(self) -> None:
        words = [
            "server",
            "run",
            "--state",
            str(self._state),
            "-s",
            self.port,
            "--host",
            self._options.host,
        ]
        words += ["--save-state-dir", str(self._place / "kept"), "--tui", "false"]
        words += ["--data-config", str(self._place / "data.toml"), *self._options.server]
        self.server = Running(self._xprocess, "server", [*SCRIPT, *words], ready="server ready")

    def start(
        self, tier: int, number: int | None = None, script: Sequence[str | Path] = SCRIPT
    ) -> str:
        """Start the member of this tier, or the one with this number, and return its name.

        `script` is the command of its client.
        """
        number = tier if number is None else number
        name = f"member-{number}"
        key = self._place / f"{name}.key"
        if not key.exists():
            secret = bytes([number + 1]) * 32
            key.write_bytes(secret)
            key.chmod(0o600)
            self.identities[name] = str(Keypair.from_seed(secret).pubkey())
            self.event_logs[name] = EventLog(self._place / "events" / name)
        checkpoints = self._place / ("checkpoints" if number == tier else f"checkpoints-{number}")
        keeps = ["--checkpoint-dir", str(checkpoints)] if tier == 0 else []
        address = f"{self._options.host}:{self.port}"
        line = [
            *(
                *self._options.on[tier],
                *map(str, script),
                "client",
                "train",
                "--run-id",
                RUN,
                "--server-addr",
                address,
            ),
            *(
                "-i",
                str(key),
                "--matformer-tier",
                str(tier),
                "--micro-batch-size",
                "4",
                "--threads",
                "1",
            ),
            *(
                "--device",
                "cpu",
                "--logs",
                "json",
                "--events-dir",
                str(self._place / "events" / name),
            ),
            *(*keeps, *self._options.member),
        ]
        own = {
            "OMP_NUM_THREADS": "1",
            "HOME": str(self._directory(f"home-{number}")),
            "TMPDIR": str(self._directory(f"t{number}")),
        }
        self.members[name] = Running(self._xprocess, f"central-{name}", line, own)
        return name

    def _directory(self, name: str) -> Path:
        directory = self._place / name
        directory.mkdir(exist_ok=True)
        return directory

    def check(self) -> None:
        for process in (self.server, *self.members.values()):
            process.check()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition. Fail if a process ends with an error meanwhile."""
        try:
            until(condition, what, PATIENCE, self.check)
        except AssertionError as error:
            error.add_note(
                "\n".join(process.last_lines for process in (self.server, *self.members.values()))
            )
            raise

    def applied(self, name: str) -> int:
        """Return the number of rounds that a member has applied."""
        return len(self.event_logs[name].events_of("applied"))

    def kill_all(self) -> None:
        """Kill all members with kill -9."""
        for process in (self.server, *self.members.values()):
            process.kill()
