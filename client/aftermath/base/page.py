"""Where a page goes that is made from something else: what `make docs` runs writes each to the path that it names."""

from __future__ import annotations

import sys
from pathlib import Path


def deliver(text: str) -> None:
    """Write a page to the path that the command line gives, or to stdout."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
