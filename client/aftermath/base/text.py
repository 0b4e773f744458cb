"""A number with the noun it counts, in the form that the number asks for."""

from __future__ import annotations

import re
import sys
from pathlib import Path


def counted(number: int, one: str, many: str = "") -> str:
    """`1 round`, `2 rounds`, `1,200 rounds`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def deliver(text: str) -> None:
    """Write a page to the path that the command line gives, or to stdout."""
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")


_WORD = "[A-Za-z0-9](?:[A-Za-z0-9_]|[.-](?![.-]))*(?<![.-])"
_REPOSITORY = re.compile(f"{_WORD}/{_WORD}")
_LONGEST = 96


def is_repository(name: str) -> bool:
    """Whether the Hub could have a repository of this name."""
    words_fit = all(len(word) <= _LONGEST for word in name.split("/"))
    return words_fit and _REPOSITORY.fullmatch(name) is not None and not name.endswith(".git")
