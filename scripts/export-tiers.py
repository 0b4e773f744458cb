#!/usr/bin/env python3
"""Export the tiers of a full checkpoint: `<name>-tier<t>` directories and a manifest with SHA-256 digests.

They lie beside the checkpoint, or with a copy of it in the directory that --out names. A member removes its older
checkpoints, so those of a run (`<run>-step<n>`) are exported elsewhere only.

Example: python scripts/export-tiers.py --src models/my-model --tiers 1 2
         python scripts/export-tiers.py --src runs/mine/checkpoints/mine-step120 --tiers 1 2 --out exported
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from aftermath.base.errors import UsageError
from aftermath.cli.present import Result
from aftermath.cli.script import Arguments, run, whole_number
from aftermath.model.checkpoint import load_config
from aftermath.model.config import MAX_TIERS
from aftermath.model.export import export_tiers


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, export, say what was written. Returns the exit status."""
    parser = Arguments(__file__, __doc__)
    parser.add_argument("--src", type=Path, required=True, help="the full checkpoint")
    tier = whole_number(1, MAX_TIERS - 1)
    parser.add_argument("--tiers", type=tier, nargs="+", required=True, help="tiers to export, for example 1 2")
    parser.add_argument("--out", type=Path, help="directory to export to; without it the one that --src lies in")
    return run(parser, _export, argv)


def _export(arguments: argparse.Namespace) -> Result:
    width = load_config(arguments.src).intermediate_size
    most = min((width & -width).bit_length(), MAX_TIERS) - 1
    if most < max(arguments.tiers):
        raise UsageError(
            f"--tiers {max(arguments.tiers)}: the FFN width {width} of {arguments.src} cannot be halved so often",
            f"choose --tiers from 1 to {most}" if most else "name a checkpoint of an even FFN width",
        )
    exported = export_tiers(arguments.src, arguments.tiers, arguments.out)
    data = {"tiers": [str(path) for path in exported.tiers], "manifest": str(exported.manifest)}
    return Result(data, "\n".join(["Wrote", *(f"  {path}" for path in (*data["tiers"], data["manifest"]))]))


if __name__ == "__main__":
    sys.exit(main())
