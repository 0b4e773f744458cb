"""Where the pages have more to say of an error, by its code.

Decided: a section and not a page, since nobody reads a page for an error; codes without one have no line of it. Pages
are named as in a checkout; who is told of one is told of the file that is there, in the package or beside it.
"""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
DOCS = _PACKAGE / "docs" if (_PACKAGE / "docs").is_dir() else _PACKAGE.parents[1] / "docs"
"""Where the pages are: in an installed package, and in a checkout beside it."""

_PAGE = re.compile(r"(?<![\w/.-])docs/([a-z-]+\.md)\b")
_OPERATIONS = "docs/operations.md"

PAGES = {
    "bind": f"{_OPERATIONS}#before-the-first-run-on-a-cluster",
    "bond-above-limit": f"{_OPERATIONS}#what-it-costs",
    "bond-too-low": f"{_OPERATIONS}#what-it-costs",
    "checkpoint": f"{_OPERATIONS}#checkpoints",
    "client-version-mismatch": f"{_OPERATIONS}#upgrading",
    "config": f"{_OPERATIONS}#a-run-from-its-owners-side",
    "data": "docs/models.md#token-files",
    "data-away": "docs/models.md#a-data-server",
    "insufficient-funds": f"{_OPERATIONS}#what-it-costs",
    "model-config": f"{_OPERATIONS}#troubleshooting",
    "no-events": f"{_OPERATIONS}#watching",
    "not-admitted": f"{_OPERATIONS}#keep-a-run",
    "observe": f"{_OPERATIONS}#who-may-look",
    "profile": f"{_OPERATIONS}#what-is-typed-each-time",
    "program-not-deployed": f"{_OPERATIONS}#before-the-first-run-on-a-cluster",
    "rank-lost": f"{_OPERATIONS}#when-a-rank-dies",
    "server": f"{_OPERATIONS}#keep-a-run",
    "server-refused": f"{_OPERATIONS}#take-part",
    "testnet": f"{_OPERATIONS}#clients",
    "text": "docs/models.md#from-text-to-tokens",
    "unavailable": f"{_OPERATIONS}#troubleshooting",
    "unexpected": f"{_OPERATIONS}#troubleshooting",
    "unsuitable": f"{_OPERATIONS}#troubleshooting",
    "wallet": f"{_OPERATIONS}#files-and-permissions",
}


def placed(text: str) -> str:
    """The text with the pages that it names as the files of this installation, from here where they are below."""
    return _PAGE.sub(lambda page: _place(DOCS / page[1]), text)


def _place(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or we are nowhere
        return str(file)
