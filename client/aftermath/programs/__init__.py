"""The compiled programs and their interfaces, shipped as package data so that users need no Rust.

Owns the paths of the two shared objects and of their IDLs (spec 0.1.0), and the program ids, read
from the IDLs. `scripts/build-programs.sh` rebuilds them; CI compares every byte.
"""

from __future__ import annotations

import json
from pathlib import Path

_HERE = Path(__file__).parent

COORDINATOR_SO: Path = _HERE / "coordinator.so"
AUTHORIZER_SO: Path = _HERE / "authorizer.so"
COORDINATOR_IDL: Path = _HERE / "coordinator.json"
AUTHORIZER_IDL: Path = _HERE / "authorizer.json"


def _address(idl: Path) -> str:
    return str(json.loads(idl.read_text(encoding="utf-8"))["address"])


COORDINATOR_ID: str = _address(COORDINATOR_IDL)
AUTHORIZER_ID: str = _address(AUTHORIZER_IDL)
