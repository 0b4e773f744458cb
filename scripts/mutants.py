#!/usr/bin/env python3
"""Draw mutants of the source and report whether the tests kill each one.

scripts/mutants.py draw --seed 38 --count 60 > runs/mutants.json
scripts/mutants.py run runs/mutants.json > runs/killed.json
scripts/mutants.py run runs/mutants.json --whole --only 3 17 > runs/survivors.json
"""

# For a Python mutant, the test files of its package and those that name its module run up to the
# first failure; with `--whole`, all fast tests. A Rust mutant is built (minutes each, needs the
# toolchain of scripts/build-programs.sh) and tried with the programs' tests.
# The checkout changes while this runs, and is restored after each mutant. `git diff` afterwards
# must be empty.

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHON_PARTS = ("rules", "optim", "chain", "member", "model")
PROGRAMS = ROOT / "client" / "aftermath" / "programs"
RUST_TESTS = ["tests/programs", "tests/rules"]
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
}
ARITHMETIC = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "+",
    ast.LShift: ">>",
}
RUST_OPERATORS = [
    (" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
    (" + ", " - "), (" - ", " + "), (" * ", " + "), (" && ", " || "), (" || ", " && "), ("true", "false"),
]  # fmt: skip
Mutant = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("--seed", type=int, default=38)
    drawing.add_argument("--count", type=int, default=60)
    running = commands.add_parser("run")
    running.add_argument("mutants", type=Path)
    running.add_argument(
        "--whole", action="store_true", help="run all fast tests, for what survived the near ones"
    )
    running.add_argument("--root", type=Path, default=ROOT, help="the checkout to change")
    running.add_argument("--markers", default="not slow and not nightly")
    running.add_argument("--only", type=int, nargs="*", help="numbers of mutants")
    options = parser.parse_args()
    if options.command == "draw":
        print(json.dumps(draw(options.seed, options.count), indent=1))
        return 0
    mutants = json.loads(options.mutants.read_text())
    chosen = options.only if options.only is not None else range(len(mutants))
    for number in chosen:
        result = {"number": number, **mutants[number], **try_mutant(mutants[number], options)}
        print(json.dumps(result), flush=True)
    return 0


def draw(seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants, equally many of each part of the source."""
    rng = random.Random(seed)
    groups = [python_mutants(part) for part in PYTHON_PARTS] + [rust_mutants()]
    per_group = count // len(groups)
    return [mutant for group in groups for mutant in rng.sample(group, per_group)]


def python_mutants(part: str) -> list[Mutant]:
    """Return every mutant of one package: one changed operator, constant or condition each."""
    mutants: list[Mutant] = []
    for path in sorted((ROOT / "client" / "aftermath" / part).rglob("*.py")):
        lines = path.read_text().splitlines()
        for node in logic(ast.parse(path.read_text())):
            for start, end, after in changes(node, lines):
                # Offsets of ast are in UTF-8 bytes.
                line = lines[start[0] - 1].encode()
                mutated = (line[: start[1]] + after.encode() + line[end[1] :]).decode()
                mutants.append(described(path, start[0], lines[start[0] - 1], mutated))
    return mutants


def logic(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below but decorators, annotations and the keywords of class definitions."""
    skipped = {
        "decorator_list",
        "annotation",
        "returns",
        "keywords" if isinstance(node, ast.ClassDef) else "",
    }
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in skipped:
                yield child
                yield from logic(child)


Position = tuple[int, int]


def changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[Position, Position, str]]:
    """Yield (start, end, replacement) for each way to change this node within one line."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield from between(node.left, node.comparators[0], COMPARISONS[type(node.ops[0])], lines)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not (isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)):
            yield from between(node.left, node.right, ARITHMETIC[type(node.op)], lines)
    elif isinstance(node, ast.BoolOp):
        after = "or" if isinstance(node.op, ast.And) else "and"
        yield from between(node.values[0], node.values[1], after, lines)
    elif (
        isinstance(node, ast.Constant)
        and type(node.value) in (int, bool)
        and node.end_lineno == node.lineno
    ):
        after = repr(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
        yield (node.lineno, node.col_offset), (node.lineno, node.end_col_offset or 0), after
    elif (
        isinstance(node, ast.If | ast.While | ast.IfExp)
        and node.test.end_lineno == node.test.lineno
    ):
        test = node.test
        line = lines[test.lineno - 1].encode()
        text = line[test.col_offset : test.end_col_offset].decode()
        yield (
            (test.lineno, test.col_offset),
            (test.lineno, test.end_col_offset or 0),
            f"not ({text})",
        )


def between(
    left: ast.expr, right: ast.expr, after: str, lines: list[str]
) -> Iterator[tuple[Position, Position, str]]:
    """Yield the replacement of the operator that stands between two operands on one line."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    start = left.end_col_offset
    end = right.col_offset
    gap = lines[right.lineno - 1].encode()[start:end].decode()
    if re.fullmatch(r" \S+ ", gap):  # no parenthesis is part of the gap
        yield (right.lineno, start), (right.lineno, end), f" {after} "


def rust_mutants() -> list[Mutant]:
    """Return every mutant of the programs: one operator each, on lines that are neither comments
    nor tests.
    """
    mutants = []
    for path in sorted((ROOT / "programs").rglob("src/**/*.rs")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.strip().startswith("#[cfg(test)]"):
                break
            if line.strip().startswith(
                ("//", "#[", "use ", "impl", "pub struct", "fn ", "pub fn ")
            ):
                continue
            code = line.partition("//")[0]
            for before, after in RUST_OPERATORS:
                for match in re.finditer(re.escape(before), code):
                    mutated = line[: match.start()] + after + line[match.end() :]
                    mutants.append(described(path, number, line, mutated))
    return mutants


def described(path: Path, line: int, before: str, after: str) -> Mutant:
    return {"file": str(path.relative_to(ROOT)), "line": line, "before": before, "after": after}


def try_mutant(mutant: Mutant, options: argparse.Namespace) -> dict[str, Any]:
    """Return whether the tests kill this mutant, after how long, and the first test that failed."""
    start = time.monotonic()
    rust = mutant["file"].endswith(".rs")
    tests = RUST_TESTS if rust else tests_of(mutant, options)
    if not tests:
        return {"killed": False, "why": "no test executes this line"}
    with applied(mutant, options.root):
        if rust and not build(mutant, options.root):
            return {"killed": True, "why": "does not compile"}
        python = options.root / ".venv" / "bin" / "python"
        command = [
            python,
            "-m",
            "pytest",
            "-x",
            "-n",
            "0",
            "-m",
            options.markers,
            "-p",
            "no:cacheprovider",
        ]
        command += ["--timeout", "300", *tests]
        done = subprocess.run(
            command, cwd=options.root, capture_output=True, text=True, check=False
        )
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    why = failed[1] if failed else done.stdout[-200:]
    return {
        "killed": done.returncode != 0,
        "tests": len(tests),
        "seconds": int(time.monotonic() - start),
        "why": why,
    }


def tests_of(mutant: Mutant, options: argparse.Namespace) -> list[str]:
    """Return the test files of the mutant's package, then the other test files that name its
    module.
    """
    folder = options.root / "tests"
    if options.whole:
        return [str(folder)]
    module = Path(mutant["file"]).relative_to("client").with_suffix("")
    package = module.parts[1]
    dotted = ".".join(module.parts)
    imported = f"from {'.'.join(module.parts[:-1])} import {module.name}"
    near = sorted((folder / package).glob("test_*.py"))
    texts = {
        path: path.read_text() for path in sorted(folder.rglob("test_*.py")) if path not in near
    }
    far = [path for path, text in texts.items() if dotted in text or imported in text]
    return [str(path) for path in near + far]


@contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Change the line, and restore the file and the programs afterwards."""
    path = root / mutant["file"]
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    assert lines[mutant["line"] - 1].rstrip("\n") == mutant["before"], (
        "the checkout has another line there"
    )
    lines[mutant["line"] - 1] = mutant["after"] + "\n"
    path.write_text("".join(lines))
    try:
        yield
    finally:
        path.write_text(original)
        subprocess.run(
            ["git", "checkout", "-q", "client/aftermath/programs", "idl"], cwd=root, check=True
        )


def build(mutant: Mutant, root: Path) -> bool:
    """Build the programs of a changed checkout, or take what an earlier run built. Return whether
    they compiled.
    """
    digest = hashlib.sha256(json.dumps(mutant, sort_keys=True).encode()).hexdigest()[:16]
    known = ROOT / "runs" / "mutant-programs" / digest
    if not known.exists():
        done = subprocess.run(
            ["scripts/build-programs.sh"], cwd=root, capture_output=True, text=True, check=False
        )
        known.mkdir(parents=True)
        if done.returncode == 0:
            for so in (root / "client" / "aftermath" / "programs").glob("*.so"):
                shutil.copy(so, known)
    built = list(known.glob("*.so"))
    for so in built:
        shutil.copy(so, root / "client" / "aftermath" / "programs")
    return bool(built)


if __name__ == "__main__":
    sys.exit(main())
