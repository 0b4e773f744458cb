"""The local networks: a Solana cluster on this machine, either embedded (LiteSVM) or the real
`solana-test-validator`.

Owns the JSON-RPC and websocket API that clients of `chain` talk to when there is no cluster to reach, its
ledger on disk, and the choice of engine. Knows nothing of torch, of peers, or of our own programs: which programs to
load is handed in.

Public names
    LocalnetConfig, serve(config) -> RunningLocalnet          the embedded network inside an event loop
    EmbeddedEngine, ValidatorEngine, run_localnet(...)        a network as a foreground process
    RealTime, VirtualTime, TimeSource                         what the slots follow
"""

from __future__ import annotations

from aftermath.localnet.config import LocalnetConfig, LocalnetEngine, Network
from aftermath.localnet.engines import EmbeddedEngine, run_localnet
from aftermath.localnet.errors import LedgerError, LocalnetError
from aftermath.localnet.server import RunningLocalnet, serve
from aftermath.localnet.timing import RealTime, TimeSource, VirtualTime
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
