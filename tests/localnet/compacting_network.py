"""A network process like `python -m aftermath.localnet`, with slots of a minute and a small journal.

compacting_network.py LEDGER COMPACT_BYTES
"""

from __future__ import annotations

import sys
from pathlib import Path

from aftermath.localnet import EmbeddedEngine, LocalnetConfig, ledger, run_localnet


def main(folder: str, compact_bytes: str) -> None:
    ledger.COMPACT_BYTES = int(compact_bytes)
    run_localnet(LocalnetConfig(rpc_port=0, ledger=Path(folder), slot_ms=60_000), EmbeddedEngine())


if __name__ == "__main__":
    main(*sys.argv[1:])
