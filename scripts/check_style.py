#!/usr/bin/env python3
"""Check that prose, names and layout follow the style rules (CONTRIBUTING.md, Style).

scripts/check_style.py           check all files
scripts/check_style.py PATH ...  check only these files and folders
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# This file and its test quote what they forbid.
EXEMPT = {"scripts/check_style.py", "tests/docs/test_check_style.py"}
MAX_COLUMNS = 100
MAX_MODULE_DOC_LINES = 6
MAX_TEST_NAME = 60
MAX_SENTENCE_WORDS = 40

RULES = {
    "archaic-word": "use the plain word: anyone, again, next to, fix, count, N, continues",
    "fragment-docstring": "start with a verb or the noun itself, or delete it",
    "long-module-docstring": f"keep {MAX_MODULE_DOC_LINES} lines, move reasons to their lines",
    "long-test-name": f"name it test_<unit>_<condition>_<result> in {MAX_TEST_NAME} characters",
    "long-line": f"wrap the comment or docstring at {MAX_COLUMNS} columns",
    "tuple-packing": "write one assignment per statement",
    "duplicate-class": "give each public class of client/ a name of its own",
    "long-sentence": f"split it into sentences of at most {MAX_SENTENCE_WORDS} words",
}

# The first word may begin a line and the second the next one, after a comment's mark.
_GAP = r"(?:_|\s+(?:(?:#+|//[/!]?)\s+)?)"
_ARCHAIC = [
    "who(?:so)?ever",
    "whom(?:so)?ever",
    "somebody",
    "anew",
    "beside",
    "mend(?:s|ed|ing)?",
    "reckon(?:s|ed|ing)?",
    f"so{_GAP}many",
    f"go(?:es)?{_GAP}on",
    f"went{_GAP}on",
    f"for{_GAP}ever",
    f"kept{_GAP}from",
    "hitherto",
    "hence(?:forth)?",
    "where(?:in|of|upon)",
    "there(?:in|of|upon)",
    "whence",
    "thither",
]
# An underscore is a boundary, so that names are checked as well.
_INITIALS = "".join(sorted({word[0] for word in _ARCHAIC}))
ARCHAIC = re.compile(
    rf"(?<![A-Za-z-])(?=[{_INITIALS}])(?:{'|'.join(_ARCHAIC)})(?![A-Za-z])", re.IGNORECASE
)
# A docstring with such a beginning makes no sense without the one before it.
FRAGMENT = re.compile(
    r"\s*(?:(?:of|and|or|but|also|as|by|its|their|whose|whom?|which|those|these|nothing)\b"
    r"|(?:the same|that of|that which|(?:one|all|none) of (?:them|it|these|those)|(?:with|for|from|in|to|on) which)\b)",
    re.IGNORECASE,
)
_NO_PROSE = re.compile(r"^(?:\||#|\s*<|\s*!\[|\s*\[[^\]]+\]:)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+")


@dataclass(frozen=True)
class Offence:
    path: str
    line: int
    rule: str
    text: str


def check_text(path: str, source: str) -> Iterator[Offence]:
    """Yield each offence in one file, except duplicate classes."""
    for match in ARCHAIC.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        yield Offence(path, line, "archaic-word", " ".join(match.group().split()))
    if path.endswith(".md"):
        yield from long_sentences(path, source)
    if path.endswith(".py"):
        yield from check_python(path, source)


def check_python(path: str, source: str) -> Iterator[Offence]:
    tree = ast.parse(source, path)
    yield from long_lines(path, source, tree)
    module_doc = ast.get_docstring(tree) or ""
    lines = len(module_doc.splitlines())
    if lines > MAX_MODULE_DOC_LINES:
        yield Offence(path, 1, "long-module-docstring", f"{lines} lines")
    for node in statements(tree):
        if doc := _docstring(node):
            if FRAGMENT.match(doc):
                yield Offence(path, node.lineno, "fragment-docstring", doc.strip().splitlines()[0])
        elif isinstance(node, ast.Assign) and packs_a_tuple(node):
            yield Offence(path, node.lineno, "tuple-packing", ast.unparse(node)[:MAX_COLUMNS])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and is_long_test(node.name):
            yield Offence(path, node.lineno, "long-test-name", node.name)


def is_long_test(name: str) -> bool:
    return name.startswith("test_") and len(name) > MAX_TEST_NAME


def long_lines(path: str, source: str, tree: ast.Module) -> Iterator[Offence]:
    """Yield long lines of comments and docstrings. The formatter wraps all other lines."""
    prose: set[int] = set()
    for node in statements(tree):
        if _docstring(node):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for number, text in enumerate(source.splitlines(), 1):
        if len(text) > MAX_COLUMNS and (number in prose or text.lstrip().startswith("#")):
            yield Offence(path, number, "long-line", f"{len(text)} columns")


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement below a node. Skip expressions: they contain no statements."""
    for block in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def _docstring(node: ast.AST) -> str:
    """Return the text of a statement that is only a string, or an empty string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""


def packs_a_tuple(node: ast.Assign) -> bool:
    """Return whether an assignment packs unrelated names. Swaps read their targets: exempt."""
    value = node.value
    if not isinstance(value, ast.Tuple) or any(isinstance(v, ast.Starred) for v in value.elts):
        return False
    for target in node.targets:
        if isinstance(target, ast.Tuple) and len(target.elts) == len(value.elts):
            read = {ast.unparse(part) for part in ast.walk(value) if isinstance(part, ast.expr)}
            return not any(ast.unparse(name) in read for name in target.elts)
    return False


def long_sentences(path: str, source: str) -> Iterator[Offence]:
    for first, text in _paragraphs(source):
        for sentence in _SENTENCE_END.split(text):
            words = len(sentence.split())
            if words > MAX_SENTENCE_WORDS:
                opening = " ".join(sentence.split()[:8])
                yield Offence(path, first, "long-sentence", f"{words} words: {opening} …")


def _paragraphs(source: str) -> Iterator[tuple[int, str]]:
    """Yield first line and text of each paragraph and list item. Skip code and tables."""
    fenced = False
    first = 0
    lines: list[str] = []
    for number, line in enumerate(source.splitlines(), 1):
        fence = line.lstrip().startswith("```")
        item = _ITEM.match(line)
        if fence or fenced or item or not line.strip() or _NO_PROSE.match(line):
            if lines:
                yield first, " ".join(lines)
            lines = []
        fenced ^= fence
        if fence or fenced or not line.strip() or _NO_PROSE.match(line):
            continue
        first = first if lines else number
        lines.append(line[item.end() :] if item else line.strip())
    if lines:
        yield first, " ".join(lines)


def duplicate_classes(sources: dict[str, str]) -> Iterator[Offence]:
    """Yield each public class of client/ that shares its name with another one."""
    definitions: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, source in sources.items():
        if path.startswith("client/") and path.endswith(".py"):
            for match in re.finditer(r"^class ([A-Z]\w*)", source, re.MULTILINE):
                line = source.count("\n", 0, match.start()) + 1
                definitions[match[1]].append((path, line))
    for name, places in definitions.items():
        for path, line in places if len(places) > 1 else ():
            others = ", ".join(other for other, _ in places if other != path)
            yield Offence(path, line, "duplicate-class", f"{name}, also in {others or path}")


def read_sources() -> dict[str, str]:
    """Return the text of each source, page and script by path, untracked files included."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    sources = {}
    for path in sorted(set(listing.stdout.splitlines()) - EXEMPT):
        file = ROOT / path
        if file.suffix in (".py", ".md", ".rs", ".sh", ".toml", ".js") and file.is_file():
            sources[path] = file.read_text(encoding="utf-8")
    return sources


def find_offences(sources: dict[str, str]) -> list[Offence]:
    offences = [offence for path, source in sources.items() for offence in check_text(path, source)]
    offences += duplicate_classes(sources)
    return sorted(offences, key=lambda offence: (offence.path, offence.line))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files and folders; default: all")
    paths = [path.rstrip("/") for path in parser.parse_args().paths]
    offences = find_offences(read_sources())
    if paths:
        folders = tuple(f"{path}/" for path in paths)
        offences = [o for o in offences if o.path in paths or o.path.startswith(folders)]
    for offence in offences:
        print(f"{offence.path}:{offence.line}: {offence.rule}: {offence.text}")
    for rule in sorted({offence.rule for offence in offences}):
        print(f"fix: {rule}: {RULES[rule]}", file=sys.stderr)
    return 1 if offences else 0


if __name__ == "__main__":
    sys.exit(main())
