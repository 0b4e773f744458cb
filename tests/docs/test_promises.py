"""Every test that a page names as holding a promise is there, and is a test of that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
PROMISES = 39 + 31 + 6 + 18
"""Rows: of messages and peers, of the program, of what checkers will need, and of all else."""


def test_each_promise_names_tests_that_are_there() -> None:
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    section = page.split("## Which test holds what")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("|") and "::" in row]
    assert len(rows) == PROMISES
    for file, name in NAMED.findall(section):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{file}::{name}"
