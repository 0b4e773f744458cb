"""The section of the docs that explains an error, by the error's code."""

from __future__ import annotations

import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
DOCS = _PACKAGE / "docs" if (_PACKAGE / "docs").is_dir() else _PACKAGE.parents[1] / "docs"
"""The docs: in an installed package, and in a checkout next to it."""

_PAGE = re.compile(r"(?<![\w/.-])docs/([a-z-]+\.md)\b")
_OPERATIONS = "docs/operations.md"

PAGES = {
    "bind": f"{_OPERATIONS}#before-the-first-run-on-a-cluster",
    "bond-above-limit": f"{_OPERATIONS}#what-it-costs",
    "bond-too-low": f"{_OPERATIONS}#what-it-costs",
    "checkpoint": f"{_OPERATIONS}#checkpoints",
    "client-version-mismatch": f"{_OPERATIONS}#upgrading",
    "config": f"{_OPERATIONS}#what-an-owner-decides",
    "data": "docs/models.md#token-files",
    "data-away": "docs/models.md#a-data-server",
    "insufficient-funds": f"{_OPERATIONS}#what-it-costs",
    "model-config": f"{_OPERATIONS}#troubleshooting",
    "no-events": f"{_OPERATIONS}#watching",
    "not-admitted": f"{_OPERATIONS}#host-a-run",
    "observe": f"{_OPERATIONS}#who-may-look",
    "profile": f"{_OPERATIONS}#stored-defaults",
    "program-not-deployed": f"{_OPERATIONS}#before-the-first-run-on-a-cluster",
    "rank-lost": f"{_OPERATIONS}#when-a-rank-dies",
    "server": f"{_OPERATIONS}#host-a-run",
    "server-refused": f"{_OPERATIONS}#take-part",
    "testnet": f"{_OPERATIONS}#clients",
    "text": "docs/models.md#from-text-to-tokens",
    "unavailable": f"{_OPERATIONS}#troubleshooting",
    "unexpected": f"{_OPERATIONS}#troubleshooting",
    "unsuitable": f"{_OPERATIONS}#troubleshooting",
    "wallet": f"{_OPERATIONS}#files-and-permissions",
}


def with_local_pages(text: str) -> str:
    """Return a text with the pages that it names as paths on this machine."""
    return _PAGE.sub(lambda page: _display_path(DOCS / page[1]), text)


def _display_path(file: Path) -> str:
    try:
        return str(file.relative_to(Path.cwd()))
    except (ValueError, OSError):  # the docs are outside the current directory, or it was deleted
        return str(file)
