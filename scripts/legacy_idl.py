#!/usr/bin/env python3
"""Write idl/legacy/, the programs' IDLs in the form before Anchor 0.30, for stock anchorpy.

`make programs` runs it after the build.

Example: python scripts/legacy_idl.py
"""

from __future__ import annotations

import json
from pathlib import Path

from aftermath.chain.idl import convert
from aftermath.programs import AUTHORIZER_IDL, COORDINATOR_IDL

LEGACY = Path(__file__).resolve().parent.parent / "idl" / "legacy"


def legacy(idl: Path) -> str:
    """Return the legacy form of a canonical IDL file, with every account of the program."""
    canonical = json.loads(idl.read_text(encoding="utf-8"))
    program = convert(canonical, zero_copy=True)
    return (
        json.dumps(program.legacy | {"metadata": {"address": str(program.address)}}, indent=2)
        + "\n"
    )


def main() -> None:
    """Write the file of each program."""
    LEGACY.mkdir(exist_ok=True)
    for idl in (COORDINATOR_IDL, AUTHORIZER_IDL):
        (LEGACY / idl.name).write_text(legacy(idl), encoding="utf-8")


if __name__ == "__main__":
    main()
