"""A local network as a process that can be killed, frozen and started again on the same ports and
ledger.
"""

from __future__ import annotations

import base64
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from solders.pubkey import Pubkey
from xprocess import XProcess

from aftermath.chain.addresses import run_addresses
from aftermath.chain.views import parse_members, parse_model, parse_run
from aftermath.programs import COORDINATOR_ID
from aftermath.rules.members import Members
from aftermath.rules.model import Model
from aftermath.rules.run import Run
from aftermath.testnet.chain import ask, healthy
from e2e.processes import CONSOLE, Running, until

T = TypeVar("T")
PROGRAM = Pubkey.from_string(COORDINATOR_ID)


class Network:
    """`aftermath-solana localnet` of one engine, with a ledger directory."""

    def __init__(
        self, xprocess: XProcess, engine: str, place: Path, host: str = "127.0.0.1"
    ) -> None:
        self._xprocess = xprocess
        self.engine = engine
        self._place = place
        self._host = host
        self.process = self._start("0")
        addresses = re.search(r"rpc=(\S+) ws=(\S+)", self.process.output)
        assert addresses is not None, self.process.output
        self.rpc, self.ws_rpc = addresses.groups()

    def _start(self, port: str) -> Running:
        # there the tests would mostly wait for slots
        slot = "200" if self.engine == "validator" else "400"
        command: list[str | Path] = [
            CONSOLE,
            "localnet",
            "--engine",
            self.engine,
            "--port",
            port,
            "--slot-ms",
            slot,
        ]
        command += ["--host", self._host, "--ledger", self._place / "ledger"]
        return Running(self._xprocess, f"localnet-{self.engine}", command, ready="localnet ready")

    @property
    def at(self) -> list[str]:
        """The options that select this network on a command line."""
        return ["--rpc", self.rpc, "--ws-rpc", self.ws_rpc]

    # --- faults

    def go_down(self) -> None:
        """Kill the embedded network with -9, or freeze the validator, which would lose its last
        slots otherwise.
        """
        if self.engine == "embedded":
            self.process.kill()
        else:
            self.process.signal_all(signal.SIGSTOP)

    def come_back(self) -> None:
        """Undo `go_down`."""
        if self.engine == "embedded":
            self.process = self._start(self.rpc.rpartition(":")[2])
        else:
            self.process.signal_all(signal.SIGCONT)
        until(lambda: healthy(self.rpc), "the network answers again")

    # --- reading

    def run(self, run_id: str) -> Run:
        return self._read(run_addresses(PROGRAM, run_id).run, parse_run)

    def model(self, run_id: str) -> Model:
        return self._read(run_addresses(PROGRAM, run_id).model, parse_model)

    def members(self, run_id: str) -> Members:
        return self._read(run_addresses(PROGRAM, run_id).members, parse_members)

    def _read(self, address: Pubkey, parse: Callable[[bytes], T]) -> T:
        return read(self.rpc, address, parse)


def read(rpc: str, address: Pubkey, parse: Callable[[bytes], T]) -> T:
    """Read an account and parse it with `parse`."""
    options = {"encoding": "base64", "commitment": "confirmed"}
    reply: Any = ask(rpc, "getAccountInfo", str(address), options)
    return parse(base64.b64decode(reply["value"]["data"][0]))
