"""Canonical JSON, which gives one document the same bytes on every machine.

Keys are sorted, there are no spaces, all characters are ASCII, and floats are the text of their
shortest repr.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from aftermath.base.errors import SchemaError


def canonical(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a document without floats."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping whose floats are the text of their shortest repr."""
    return {
        key: repr(value) if isinstance(value, float) else value for key, value in values.items()
    }


def decimal(text: object, label: str) -> float:
    """Parse a decimal string.

    Return NaN for a value that is not a string of at most 32 characters. Raise SchemaError for any
    other string that is not a number.
    """
    try:
        return float(text) if isinstance(text, str) and len(text) <= 32 else math.nan
    except ValueError:
        raise SchemaError(f"the schema's {label} is not a decimal: {text!r}") from None
