"""Local networks as processes, reached over real sockets only."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

Started = tuple[subprocess.Popen[str], str, str]
"""A process and its two URLs."""


@dataclass(frozen=True)
class Urls:
    """A running network: its engine's name and its two addresses."""

    engine: str
    rpc_url: str
    ws_url: str


def start(*arguments: str) -> Started:
    """Start a network with these options of `python -m aftermath.localnet`."""
    return _spawn("-m", "aftermath.localnet", "--rpc-port", "0", *arguments)


def start_compacting(ledger: Path, *, compact_bytes: int) -> Started:
    """Start a network with slots of a minute that compacts its journal at this size."""
    script = Path(__file__).with_name("compacting_network.py")
    return _spawn(str(script), str(ledger), str(compact_bytes))


def _spawn(*arguments: str) -> Started:
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    ready = re.fullmatch(r"localnet ready rpc=(\S+) ws=(\S+)\n", line)
    if ready is None:
        process.wait(30)
        assert process.stderr is not None
        raise AssertionError(f"no ready line but {line!r}: {process.stderr.read()}")
    return process, ready.group(1), ready.group(2)
