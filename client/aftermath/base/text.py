"""Small text helpers: counted nouns, repository names, and where generated pages go."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path


def counted(number: int, one: str, many: str = "") -> str:
    """Return `1 round`, `2 rounds`, `1,200 rounds`. `many` is the plural if it is not `one`
    plus s.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def shortage(needed: int, free: int) -> tuple[str, str]:
    """Return the needed and the free bytes as texts in the same unit. `free` is less.

    The needed bytes are rounded up and the free ones down, so the texts differ.
    """
    unit, name = (10**9, "GB") if needed >= 10**9 else (10**6, "MB")
    tenths = math.ceil(needed * 10 / unit), math.floor(free * 10 / unit)
    return f"{tenths[0] / 10:,.1f} {name}", f"{tenths[1] / 10:,.1f} {name}"


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
    """Return whether the Hub could have a repository of this name.

    It needs an owner and a name, each by the Hub's own rules.
    """
    words_fit = all(len(word) <= _LONGEST for word in name.split("/"))
    return words_fit and _REPOSITORY.fullmatch(name) is not None and not name.endswith(".git")
