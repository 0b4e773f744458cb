"""The backends of a local testnet: a local network with the real programs, or a centralized server.

Both are set up with the commands that an owner types.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from aftermath.base.text import counted
from aftermath.localnet.free_ports import free_ports, is_free
from aftermath.testnet.chain import SOLANA, LocalNetwork, start_chain
from aftermath.testnet.plan import RUN_ID, LocalTestnetClient, LocalTestnetPlan
from aftermath.testnet.processes import Process, ProcessError, Running, at_once, call, wait_for

SERVER_SECONDS = 60
HERE = "127.0.0.1"
Open = Callable[[str, list[str]], Running]
"""Starts a command under a name, with its output in a pane or log."""


class Backend(Protocol):
    """A network or server that hosts the run. `keeper` names its process."""

    keeper: str

    def start(self, open_process: Open) -> Running:
        """Start it, with a run that waits for its clients. Return its main process."""

    def client(self, client: LocalTestnetClient) -> list[str]:
        """Return the command of a client, without the options that every backend shares."""


class Solana:
    """An embedded network with the programs on it, and a run on chain."""

    keeper = "localnet"

    def __init__(self, plan: LocalTestnetPlan, environment: Mapping[str, str]) -> None:
        self._plan = plan
        self._environment = environment
        self._chain = LocalNetwork(plan.port)

    def start(self, open_process: Open) -> Running:
        plan = self._plan
        environment = self._environment
        if plan.port:
            refuse_taken(plan.port, plan.port + 1)
        process, self._chain = start_chain(
            plan.place / "ledger", plan.log(self.keeper), environment, port=plan.port
        )
        create = [*SOLANA, "show-identity", "--create", "-w"]
        names = ["owner", *(client.name for client in plan.clients)]
        at_once(([*create, str(plan.keys(name))] for name in names), plan.log("keys"), environment)
        plan.config.write_text(plan.chosen.text)
        self._owner(
            "create-run",
            "--name",
            "local testnet",
            "--description",
            counted(len(plan.clients), "client"),
        )
        self._owner("update-config", "--config-path", str(plan.config))
        self._owner("set-paused", "resume")
        if plan.panes:
            open_process("run", self._chain.command("watch", "--run-id", RUN_ID))
        return process

    def _owner(self, command: str, *arguments: str) -> None:
        wallet = str(self._plan.keys("owner"))
        line = self._chain.command(command, "--run-id", RUN_ID, "-w", wallet, *arguments)
        call(line, self._plan.log("owner"), self._environment)

    def client(self, client: LocalTestnetClient) -> list[str]:
        return [
            *self._chain.command(
                "train", "--run-id", RUN_ID, "-w", str(self._plan.keys(client.name))
            ),
            *("--iroh-discovery", "local", "--discovery-dir", str(self._plan.place / "peers")),
        ]


class Centralized:
    """A server, which also serves the tokens of a data.toml next to the config."""

    keeper = "server"

    def __init__(self, plan: LocalTestnetPlan) -> None:
        self._plan = plan
        self._port = plan.port

    def start(self, open_process: Open) -> Running:
        plan = self._plan
        state = self._plan.place / "state.toml"
        if self._port:
            refuse_taken(self._port)
        else:
            self._port = free_ports(HERE, 1)
        state.write_text(f'run_id = "{RUN_ID}"\n{plan.chosen.text}')
        for client in plan.clients:
            _write_key(plan.keys(client.name))
        data = plan.chosen.path.with_name("data.toml")
        command = [
            sys.executable,
            "-P",
            "-m",
            "aftermath.server",
            "server",
            "run",
            "--state",
            str(state),
            "--host",
            HERE,
        ]
        command += ["-s", str(self._port), "--save-state-dir", str(plan.place / "server")]
        command += ["--data-config", str(data.absolute())] if data.exists() else []
        process = open_process(self.keeper, [*command, "--tui", "true" if plan.tui else "false"])
        wait_for("the server", lambda: _listens(self._port), SERVER_SECONDS, process)
        return process

    def client(self, client: LocalTestnetClient) -> list[str]:
        address = ["--run-id", RUN_ID, "--server-addr", f"{HERE}:{self._port}"]
        command = [sys.executable, "-P", "-m", "aftermath.server", "client", "train", *address]
        return [*command, "-i", str(self._plan.keys(client.name))]


def refuse_taken(*ports: int) -> None:
    """Raise ProcessError if a process listens on one of the ports."""
    if taken := [port for port in ports if not is_free(HERE, port)]:
        raise ProcessError(
            f"port {taken[0]} is in use", "Name another --server-port, or 0 for one that is free"
        )


def _write_key(path: Path) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(os.urandom(32))


def _listens(port: int) -> bool:
    try:
        socket.create_connection((HERE, port), 1).close()
    except OSError:
        return False
    return True


def logged(plan: LocalTestnetPlan, environment: Mapping[str, str]) -> Open:
    """Start processes whose output goes to their logs."""
    return lambda name, command: Process(name, command, plan.log(name), environment)
