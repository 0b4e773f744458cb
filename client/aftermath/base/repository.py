"""The names of Hugging Face repositories that this client takes, told before anything goes over the network.

Decided: always an owner and a name, by the Hub's own rules for each; repositories without an owner are none that people
can make.
"""

from __future__ import annotations

import re

_WORD = "[A-Za-z0-9](?:[A-Za-z0-9_]|[.-](?![.-]))*(?<![.-])"
_REPOSITORY = re.compile(f"{_WORD}/{_WORD}")
_LONGEST = 96


def is_repository(name: str) -> bool:
    """Whether the Hub could have a repository of this name."""
    words_fit = all(len(word) <= _LONGEST for word in name.split("/"))
    return words_fit and _REPOSITORY.fullmatch(name) is not None and not name.endswith(".git")
