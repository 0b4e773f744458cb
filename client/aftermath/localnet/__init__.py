"""A local Solana cluster: embedded (LiteSVM) or the real `solana-test-validator`.

It serves the JSON-RPC and websocket API that clients of `chain` use, and keeps the ledger on disk.
The caller passes the programs to load: the package does not use torch, peers or our programs.
"""

from __future__ import annotations

from aftermath.localnet.config import LocalnetConfig, LocalnetEngine, Network
from aftermath.localnet.errors import LedgerError, LocalnetError
from aftermath.localnet.server import EmbeddedEngine, RunningLocalnet, run_localnet, serve
from aftermath.localnet.slots import RealTime, TimeSource, VirtualTime
from aftermath.localnet.validator import ValidatorEngine, validator_binary

__all__ = [
    "EmbeddedEngine",
    "LedgerError",
    "LocalnetConfig",
    "LocalnetEngine",
    "LocalnetError",
    "Network",
    "RealTime",
    "RunningLocalnet",
    "TimeSource",
    "ValidatorEngine",
    "VirtualTime",
    "run_localnet",
    "serve",
    "validator_binary",
]
