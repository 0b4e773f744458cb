#!/usr/bin/env python3
"""`aftermath-solana model init` under the name that upstream's recipes use.

Example: python scripts/init-model.py --out checkpoints/tiny --hidden 128 --layers 4 \\
             --heads 4 --kv-heads 2 --intermediate 512 --vocab 257 --seed 0
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aftermath.cli.script import as_command


def main(argv: Sequence[str] | None = None) -> int:
    """Write the checkpoint. Returns the exit status."""
    return as_command("model init", argv)


if __name__ == "__main__":
    sys.exit(main())
