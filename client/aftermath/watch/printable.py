"""Text that strangers wrote (names of runs, messages of nodes and peers), made safe for a terminal."""

from __future__ import annotations

import unicodedata

# They reorder what follows: a name could make a line read as another one.
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, keep: str = "") -> str:
    """`text` with control characters, escape sequences' first bytes among them, shown as �, except those in `keep`."""
    return "".join("�" if character not in keep and _controls(character) else character for character in text)


def _controls(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs") or character in _DIRECTIONS
