"""The configuration of a local network, for every engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from solders.pubkey import Pubkey

from aftermath.localnet.errors import LocalnetError
from aftermath.localnet.slots import RealTime, TimeSource

MAX_PORT = 65535


@dataclass(frozen=True)
class LocalnetConfig:
    """The settings of a network.

    `rpc_port` 0 takes a free port; the websocket uses the next one, as on every Solana node.
    `programs` are (program id, compiled .so). `airdrops` are accounts with their minimum lamports
    at the start. `ledger` is a directory that survives restarts. `slot_ms` is the length of a slot.
    """

    host: str = "127.0.0.1"
    rpc_port: int = 8899
    ledger: Path | None = None
    programs: Sequence[tuple[Pubkey, Path]] = ()
    airdrops: Sequence[tuple[Pubkey, int]] = ()
    slot_ms: int = 400
    time: TimeSource = field(default_factory=RealTime)

    def __post_init__(self) -> None:
        if self.slot_ms < 1:
            raise LocalnetError(
                f"a slot of {self.slot_ms} ms is not possible", "Use at least 1 (mainnet has 400)"
            )
        if not 0 <= self.rpc_port < MAX_PORT:
            raise LocalnetError(
                f"port {self.rpc_port} is not possible", f"Give 0 (any) to {MAX_PORT - 1}"
            )


class Network(Protocol):
    """A running local network of any engine."""

    @property
    def rpc_url(self) -> str: ...

    @property
    def ws_url(self) -> str: ...

    async def close(self) -> None: ...


class LocalnetEngine(Protocol):
    """Starts local networks. `start` raises `LocalnetError`."""

    async def start(self, config: LocalnetConfig) -> Network: ...
