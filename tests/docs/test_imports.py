"""Test that packages import only along the arrows of docs/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from docs.sources import CLIENT, parsed

ROOT = Path(__file__).parents[2]
NEVER = {
    "base": {"*"},
    "rules": {"torch", "aiohttp", "httpx", "asyncio", "socket", "time", "random"},
    "config": {"torch", "aiohttp", "httpx", "asyncio"},
    "coordinator": {"torch", "aftermath.chain", "aftermath.localnet", "solders"},
    "member": {
        "time",
        "random",
        "socket",
        "solders",
        "aftermath.chain",
        "aftermath.localnet",
        "aftermath.train",
    }
    | {"aftermath.server"},
    "replica": {"solders", "aftermath.chain", "aftermath.member"},
    "audit": {"asyncio", "random", "aftermath.p2p", "aftermath.coordinator", "aftermath.member"},
    "parallel": {"solders", "aftermath.chain", "aftermath.p2p", "aftermath.member"},
    "chain": {"torch", "aftermath.p2p"},
    "server": {"torch", "iroh", "aftermath.member", "aftermath.model", "aftermath.optim"},
    "owner": {"aftermath.cli", "aftermath.server", "aftermath.member"},
    "ui": {
        "torch",
        "iroh",
        "aftermath.cli",
        "aftermath.p2p",
        "aftermath.member",
        "aftermath.chain.wallet",
    },
    "lab": {"aiohttp", "httpx", "aftermath.chain", "aftermath.p2p", "aftermath.coordinator"},
    "testnet": {"torch", "solders", "aftermath.chain", "aftermath.member"},
    "localnet": {"torch", "aftermath.chain", "aftermath.p2p", "aftermath.programs"},
    "p2p": {"torch", "aftermath.chain"},
    "model": {"aftermath.chain", "aftermath.p2p", "aftermath.optim"},
    "optim": {"aiohttp", "httpx", "aftermath.chain", "aftermath.p2p"},
    "kernels": {"aftermath.optim", "aftermath.model", "aftermath.chain", "aftermath.p2p"},
    "data": {"torch", "aftermath.chain", "aftermath.model"},
}
"""Forbidden imports by package. * is any other package of this project."""


def imported_modules(tree: ast.Module) -> set[str]:
    """Return all modules that a file imports, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= (
                {node.module}
                if node.module != "aftermath"
                else {f"aftermath.{a.name}" for a in node.names}
            )
    return modules


@cache
def by_package() -> dict[str, set[str]]:
    modules: dict[str, set[str]] = defaultdict(set)
    for file, tree in parsed():
        modules[file.relative_to(CLIENT).parts[0]] |= imported_modules(tree)
    return modules


def imports_by_package() -> dict[str, set[str]]:
    """Return the project packages that each package imports."""
    return {
        package: {name.split(".")[1] for name in modules if name.startswith("aftermath.")}
        - {package, "__version__"}
        for package, modules in by_package().items()
        if (CLIENT / package).is_dir()
    }


def reachable_packages() -> dict[str, set[str]]:
    """Return the packages reachable from each package along the page's arrows."""
    text = (ROOT / "docs/architecture.md").read_text()
    arrows: dict[str, set[str]] = defaultdict(set)
    for line in text.partition("flowchart TD\n")[2].partition("```")[0].splitlines():
        begin, _, end = line.strip().partition(" --> ")
        for package in begin.split(" & "):
            arrows[package] |= set(end.split(" & "))
    for package in re.findall(r"`(\w+)`", re.findall(r"arrows;([^)]*) read `config`", text)[0]):
        arrows[package].add("config")
    for package in TopologicalSorter(dict(arrows)).static_order():
        arrows[package] |= {further for other in arrows[package] for further in arrows[other]}
    return arrows


def test_imports_run_one_way() -> None:
    assert list(TopologicalSorter(imports_by_package()).static_order())


def test_every_import_is_drawn() -> None:
    allowed = reachable_packages()
    assert {
        package: others - allowed[package]
        for package, others in imports_by_package().items()
        if others - allowed[package]
    } == {}


@pytest.mark.parametrize("package", NEVER)
def test_package_does_not_import_beyond_its_seams(package: str) -> None:
    modules = {
        name for name in by_package()[package] if not name.startswith(f"aftermath.{package}")
    }
    if "*" in NEVER[package]:
        assert not {name for name in modules if name.startswith("aftermath")}
    strange = {
        name
        for name in modules
        for never in NEVER[package]
        if name == never or name.startswith(f"{never}.")
    }
    assert not strange
