"""Make text that strangers wrote (names of runs, messages of nodes and peers) safe for a terminal,
a log and JSON.
"""

from __future__ import annotations

import json
import re
import unicodedata

# Control characters (C0, C1), format characters (bidi marks, invisible ones), surrogates, line
# separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Persian, Indic scripts and emoji need them, and they move nothing
_JOINERS = frozenset("\u200c\u200d")
_BEYOND_ASCII = re.compile(r"[\x7f-\U0010ffff]")


def printable(text: str, keep: str = "") -> str:
    """Return `text` with � for each character that could move a cursor or reorder a line, except
    those in `keep`.
    """
    if text.isprintable():
        return text
    return "".join(
        "�" if character not in keep and _unsafe(character) else character for character in text
    )


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return `value` as JSON in UTF-8 text in which unsafe characters are escaped, so that a
    terminal may show it.
    """
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))


def escaped_json(document: str) -> str:
    """Return a JSON document with its unsafe characters as `\\uXXXX`, which mean the same."""
    return (
        document
        if document.isascii() and "\x7f" not in document
        else _BEYOND_ASCII.sub(_escaped, document)
    )


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if not _unsafe(character):
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE and character not in _JOINERS
