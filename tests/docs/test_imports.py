"""Packages import one way, as docs/architecture.md says; what lies behind a seam is not reached around it."""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "client" / "aftermath"
NEVER = {
    "base": {"*"},
    "rules": {"torch", "aiohttp", "httpx", "asyncio", "time"},
    "config": {"torch", "aiohttp", "httpx", "asyncio"},
    "coordinator": {"torch", "aftermath.chain", "aftermath.localnet", "solders"},
    "member": {"time", "random", "solders", "aftermath.chain", "aftermath.localnet", "aftermath.train"},
    "replica": {"solders", "aftermath.chain", "aftermath.member"},
    "ranks": {"solders", "aftermath.chain", "aftermath.p2p", "aftermath.member"},
    "chain": {"torch", "aftermath.p2p"},
    "localnet": {"torch", "aftermath.chain", "aftermath.p2p"},
    "p2p": {"torch", "aftermath.chain"},
    "model": {"aftermath.chain", "aftermath.p2p", "aftermath.optim"},
    "optim": {"aftermath.chain", "aftermath.p2p"},
    "kernels": {"aftermath.optim", "aftermath.model", "aftermath.chain", "aftermath.p2p"},
    "data": {"torch", "aftermath.chain", "aftermath.model"},
}
"""What a package must not import; * is any other package of ours."""


def imported(file: Path) -> set[str]:
    """The modules that a file names, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} if node.module != "aftermath" else {f"aftermath.{a.name}" for a in node.names}
    return found


def by_package() -> dict[str, set[str]]:
    modules: dict[str, set[str]] = defaultdict(set)
    for file in CLIENT.rglob("*.py"):
        modules[file.relative_to(CLIENT).parts[0]] |= imported(file)
    return modules


def test_imports_run_one_way() -> None:
    graph = {
        package: {name.split(".")[1] for name in modules if name.startswith("aftermath.")} - {package}
        for package, modules in by_package().items()
    }
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("package", NEVER)
def test_a_package_knows_nothing_of_what_is_behind_its_seams(package: str) -> None:
    modules = {name for name in by_package()[package] if not name.startswith(f"aftermath.{package}")}
    if "*" in NEVER[package]:
        assert not {name for name in modules if name.startswith("aftermath")}
    strange = {name for name in modules for never in NEVER[package] if name == never or name.startswith(f"{never}.")}
    assert not strange
