#!/usr/bin/env python3
"""Export the tiers of a full checkpoint: `<src>-tier<t>` directories and a manifest with SHA-256 digests.

Example: python scripts/export-tiers.py --src checkpoints/my-model --tiers 1 2
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from aftermath.model.export import export_tiers
from aftermath.model.manifest import MANIFEST_FILE
from aftermath.run.errors import AftermathError


def main(argv: Sequence[str] | None = None) -> int:
    """Read the arguments, export, say what was written. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--src", type=Path, required=True, help="the full checkpoint")
    parser.add_argument("--tiers", type=int, nargs="+", required=True, help="tiers to export, for example 1 2")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    arguments = parser.parse_args(argv)
    try:
        written = export_tiers(arguments.src, arguments.tiers)
    except AftermathError as error:
        print(error, file=sys.stderr)
        return 1
    manifest = arguments.src / MANIFEST_FILE
    if arguments.json:
        print(json.dumps({"tiers": [str(path) for path in written], "manifest": str(manifest)}))
    else:
        print("\n".join(["Wrote", *(f"  {path}" for path in written), f"  {manifest}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
