"""A local network as a process: start it, wait for it, and call its RPC."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aftermath.localnet.free_ports import free_ports
from aftermath.testnet.processes import Process, ProcessError, wait_for

SLOT_MS = 50
"""An eighth of mainnet's, because each round waits about four slots for the next seed."""
START_SECONDS = 90


@dataclass(frozen=True)
class LocalNetwork:
    """The address of a local network."""

    port: int

    @property
    def rpc(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws_rpc(self) -> str:
        return f"ws://127.0.0.1:{self.port + 1}"  # Solana puts the websocket on the next port

    def command(self, *arguments: str) -> list[str]:
        """Return an `aftermath-solana` command for this network."""
        return [*SOLANA, *arguments, "--rpc", self.rpc, "--ws-rpc", self.ws_rpc]


SOLANA = [sys.executable, "-P", "-m", "aftermath"]


def start_chain(
    ledger: Path, log: Path, environment: Mapping[str, str], engine: str = "embedded", port: int = 0
) -> tuple[Process, LocalNetwork]:
    """Start a local network at this port, or at a free one for 0, and wait until it answers."""
    process, chain = launch_chain(ledger, log, environment, engine, port)
    await_chain(process, chain)
    return process, chain


def launch_chain(
    ledger: Path, log: Path, environment: Mapping[str, str], engine: str = "embedded", port: int = 0
) -> tuple[Process, LocalNetwork]:
    """Start a local network without waiting for it."""
    chain = LocalNetwork(port or free_ports("127.0.0.1", 2))
    command = [*SOLANA, "localnet", "--engine", engine, "--slot-ms", str(SLOT_MS)]
    options = ["--port", str(chain.port), "--ledger", str(ledger)]
    return Process("localnet", [*command, *options], log, environment), chain


def await_chain(process: Process, chain: LocalNetwork) -> None:
    """Wait until a local network answers. Raise ProcessError if it ends first or takes too long."""
    wait_for("the local network", lambda: healthy(chain.rpc), START_SECONDS, process)


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Uses no proxy, because the network is on this machine."""


def ask(rpc: str, method: str, *params: object) -> object:
    """Make one JSON-RPC call."""
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
    ).encode()
    request = urllib.request.Request(rpc, body, {"Content-Type": "application/json"})
    with _DIRECT.open(request, timeout=10) as reply:
        answer = json.load(reply)
    if "error" in answer:
        raise ProcessError(f"{method}: {answer['error']}")
    return answer["result"]


def healthy(rpc: str) -> bool:
    """Return whether a network answers there."""
    try:
        return ask(rpc, "getHealth") == "ok"
    except (OSError, ValueError, ProcessError):
        return False
