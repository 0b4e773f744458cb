"""Tests that each error in the sources has a sentence that continues `error:

`, and a fix. tests/docs/test_fixes.py checks how fixes begin.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import aftermath.sim.simulation
import aftermath.train.session  # noqa: F401  (with it, all errors are known)
from aftermath.base.errors import AftermathError
from aftermath.coordinator.errors import Refused
from cli.conftest import ROOT

SOURCES = [*(ROOT / "client").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]
PROPER = re.compile(r"[A-Z]{2}|Llama\b")
"""Words that begin with a capital wherever they stand."""


def kinds(base: type[AftermathError]) -> Iterator[type[AftermathError]]:
    yield base
    for kind in base.__subclasses__():
        yield from kinds(kind)


def texts(node: ast.expr) -> Iterator[str]:
    """Return the possible texts of an expression, with `{}` for inserted values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))


def error_texts() -> Iterator[tuple[str, str, bool]]:
    """Return (location, text, whether it is a fix) of every message and fix of an error."""
    positions = {
        kind.__name__: 1 if issubclass(kind, Refused) else 0 for kind in kinds(AftermathError)
    }
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in positions
            ):
                first = positions[node.func.id]
                sentences = node.args[first : first + 1]
                fixes = node.args[first + 1 : first + 2]
                fixes += [word.value for word in node.keywords if word.arg == "fix"]
                for expressions, is_fix in ((sentences, False), (fixes, True)):
                    for text in (text for expression in expressions for text in texts(expression)):
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text, is_fix


def test_error_texts_start_lowercase_and_have_no_final_stop() -> None:
    all_texts = list(error_texts())
    assert len(all_texts) > 300
    odd = [
        (where, text)
        for where, text, is_fix in all_texts
        if not is_fix and text[:1].isupper() and not PROPER.match(text)
    ]
    assert not odd + [(where, text) for where, text, _ in all_texts if text.endswith(".")]
