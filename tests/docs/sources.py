"""Syntax trees of the client's modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

CLIENT = Path(__file__).parents[2] / "client" / "aftermath"


def parsed() -> Iterator[tuple[Path, ast.Module]]:
    """Yield every module's path and tree, one after the other.

    Do not keep all trees: every later garbage collection of this process would traverse a million
    nodes.
    """
    for file in sorted(CLIENT.rglob("*.py")):
        yield file, ast.parse(file.read_text())
