"""Test that every fix begins with a capital letter, a command, an option or a file."""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aftermath.chain.refusals import _TEXTS
from docs.sources import CLIENT, parsed

FIX_NAMES = {"fix", "advice", "hint"}
"""Names of parameters and variables that hold a fix."""
COMMANDS = {"pip", "aftermath-solana", "aftermath-centralized"}
SIGNATURES = {"AftermathError": ["message", "fix"], "Refused": ["name", "message", "fix"]}


@cache
def nodes() -> dict[Path, dict[type[ast.AST], list[Any]]]:
    """Return the nodes of all modules, by their kind."""
    by_file: dict[Path, dict[type[ast.AST], list[Any]]] = {}
    for file, tree in parsed():
        kinds = by_file[file] = defaultdict(list)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Call | ast.Assign):
                kinds[type(node)].append(node)
    return by_file


@pytest.fixture(scope="module", autouse=True)
def _nodes_end_with_these_tests() -> Iterator[None]:
    gc.disable()  # collections would take longer than parsing
    yield
    for cached_function in (nodes, parameters_by_callable):
        cached_function.cache_clear()
    gc.enable()


def name_of(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def project_errors() -> dict[str, list[str]]:
    """Return the parameters of each subclass of AftermathError."""
    bases = {
        node.name: [name_of(base) for base in node.bases]
        for kinds in nodes().values()
        for node in kinds[ast.ClassDef]
    }
    errors = dict(SIGNATURES)
    while True:
        more = {
            name: errors[base] for name, those in bases.items() for base in those if base in errors
        }
        if not more.keys() - errors.keys():
            return errors
        errors = more | errors


def functions_with_fix() -> dict[str, list[str]]:
    """Return the parameters of each function that takes a fix."""
    parameters = {}
    for kinds in nodes().values():
        for node in kinds[ast.FunctionDef]:
            names = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
            if node.name != "__init__" and FIX_NAMES.intersection(names):
                parameters[node.name] = [name for name in names if name != "self"]
    return parameters


def argument(call: ast.Call, parameters: list[str]) -> Iterator[ast.expr]:
    """Yield the arguments that are fixes."""
    yield from (one.value for one in call.keywords if one.arg in FIX_NAMES)
    for name, value in zip(parameters, call.args, strict=False):
        if isinstance(value, ast.Starred):
            return
        if name in FIX_NAMES:
            yield value


def texts(file: Path, expression: ast.expr) -> Iterator[str]:
    """Yield the possible beginnings of a fix. Nothing if it is only known at run time."""
    match expression:
        case ast.IfExp():
            yield from texts(file, expression.body)
            yield from texts(file, expression.orelse)
        case ast.BinOp():
            yield from texts(file, expression.left)
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[first, *_]):
            yield from texts(file, first.value if isinstance(first, ast.FormattedValue) else first)
        case ast.Name():
            for node in nodes()[file][ast.Assign]:
                if expression.id in map(name_of, node.targets):
                    yield from texts(file, node.value)


def fixes(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each fix in a file."""
    for node in nodes()[file][ast.Call]:
        for expression in argument(node, parameters_by_callable().get(name_of(node.func), [])):
            yield from ((node.lineno, text) for text in texts(file, expression))


@cache
def parameters_by_callable() -> dict[str, list[str]]:
    """Return the parameters of all functions and errors that take a fix."""
    return functions_with_fix() | project_errors()


def begins_well(fix: str) -> bool:
    first = fix.split(maxsplit=1)[0] if fix.strip() else "-"
    return not first[0].islower() or first in COMMANDS or "/" in first


def test_fixes_begin_with_capital_letter() -> None:
    all_fixes = [(file, line, fix) for file in nodes() for line, fix in fixes(file)]
    assert len(all_fixes) > 400
    wrong = [
        f"{file.relative_to(CLIENT)}:{line}: {fix}"
        for file, line, fix in all_fixes
        if not begins_well(fix)
    ]
    assert not wrong, "\n".join(wrong)


def test_program_refusal_fixes_begin_with_capital_letter() -> None:
    assert [fix for _, fix in _TEXTS.values() if not begins_well(fix)] == []
