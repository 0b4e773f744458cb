"""A network process as `python -m aftermath.localnet` is, but with a wall clock that was set and a small journal.

odd_network.py LEDGER WALL_SECONDS SLOT_MS COMPACT_BYTES
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from aftermath.localnet import EmbeddedEngine, LocalnetConfig, RealTime, ledger, run_localnet


def main(folder: str, wall_seconds: str, slot_ms: str, compact_bytes: str) -> None:
    ledger.COMPACT_BYTES = int(compact_bytes)
    clock = RealTime(wall=lambda: time.time() + float(wall_seconds))
    run_localnet(LocalnetConfig(rpc_port=0, ledger=Path(folder), slot_ms=int(slot_ms), time=clock), EmbeddedEngine())


if __name__ == "__main__":
    main(*sys.argv[1:])
