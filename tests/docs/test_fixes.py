"""What an error of ours says to do begins as a sentence does: with a capital letter, a command, an option or a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from aftermath.chain.refusals import _TOLD

CLIENT = Path(__file__).parents[2] / "client" / "aftermath"
HANDED_ON = {"fix", "advice", "hint"}
"""Parameters and variables that a fix travels in."""
COMMANDS = {"pip", "aftermath-solana", "aftermath-centralized"}
SIGNATURES = {"AftermathError": ["message", "fix"], "Refused": ["name", "message", "fix"]}


@cache
def trees() -> dict[Path, ast.Module]:
    """Of all our modules: seconds, which who only collects the tests need not spend."""
    return {file: ast.parse(file.read_text()) for file in sorted(CLIENT.rglob("*.py"))}


def name_of(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def errors_of_ours() -> dict[str, list[str]]:
    """The classes that derive from AftermathError, and what they are made with."""
    bases = {
        node.name: [name_of(base) for base in node.bases]
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = dict(SIGNATURES)
    while True:
        more = {name: found[base] for name, those in bases.items() for base in those if base in found}
        if not more.keys() - found.keys():
            return found
        found = more | found


def handing_on() -> dict[str, list[str]]:
    """The functions that are given a fix, with their parameters."""
    found = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name != "__init__":
                names = [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
                if HANDED_ON.intersection(names):
                    found[node.name] = [name for name in names if name != "self"]
    return found


def argument(call: ast.Call, parameters: list[str]) -> Iterator[ast.expr]:
    """What is given as the fix."""
    yield from (one.value for one in call.keywords if one.arg in HANDED_ON)
    for name, given in zip(parameters, call.args, strict=False):
        if isinstance(given, ast.Starred):
            return
        if name in HANDED_ON:
            yield given


def texts(tree: ast.AST, given: ast.expr) -> Iterator[str]:
    """How what is given may begin; nothing where that is only known when it runs."""
    match given:
        case ast.IfExp():
            yield from texts(tree, given.body)
            yield from texts(tree, given.orelse)
        case ast.BinOp():
            yield from texts(tree, given.left)
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=[first, *_]):
            yield from texts(tree, first.value if isinstance(first, ast.FormattedValue) else first)
        case ast.Name():
            for node in ast.walk(tree):
                if isinstance(node, ast.Assign) and given.id in map(name_of, node.targets):
                    yield from texts(tree, node.value)


def fixes(file: Path) -> Iterator[tuple[int, str]]:
    """The fixes that a file writes, with their lines."""
    for node in ast.walk(trees()[file]):
        if isinstance(node, ast.Call):
            for given in argument(node, known().get(name_of(node.func), [])):
                yield from ((node.lineno, text) for text in texts(trees()[file], given))


@cache
def known() -> dict[str, list[str]]:
    """What a fix is handed to, with its parameters."""
    return handing_on() | errors_of_ours()


def begins_well(fix: str) -> bool:
    first = fix.split(maxsplit=1)[0] if fix.strip() else "-"
    return not first[0].islower() or first in COMMANDS or "/" in first


def test_fixes_begin_with_a_capital_letter() -> None:
    found = [(file, line, fix) for file in trees() for line, fix in fixes(file)]
    assert len(found) > 400
    wrong = [f"{file.relative_to(CLIENT)}:{line}: {fix}" for file, line, fix in found if not begins_well(fix)]
    assert not wrong, "\n".join(wrong)


def test_so_do_those_of_the_programs_refusals() -> None:
    assert [fix for _, fix in _TOLD.values() if not begins_well(fix)] == []
