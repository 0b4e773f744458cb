#!/usr/bin/env python3
"""`aftermath-solana model export` under upstream's name, with upstream's form of tiers.

Example: python scripts/export_matformer_tiers.py --src models/my-model --tiers 1 2
         python scripts/export_matformer_tiers.py --src runs/mine/checkpoints/mine-step120 --tiers 1
         2 --out exported
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aftermath.cli.script import as_command


def main(argv: Sequence[str] | None = None) -> int:
    """Export, and print the written files. Return the exit status."""
    words: list[str] = []
    for word in sys.argv[1:] if argv is None else argv:
        if len(words) > 1 and words[-2] == "--tiers" and not word.startswith("--"):
            words[-1] += f",{word}"
        else:
            words.append(word)
    return as_command("model export", words)


if __name__ == "__main__":
    sys.exit(main())
