"""Canonical JSON: one document, one sequence of bytes, for every writer.

Decided: keys sorted, no spaces, ASCII alone, and no floats: a number with a fraction is the text of its shortest repr,
on which every language agrees.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from aftermath.model.levels import SchemaError


def canonical(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document without floats."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def portable(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same mapping with every float as its shortest repr."""
    return {key: repr(value) if isinstance(value, float) else value for key, value in values.items()}


def decimal(text: object, label: str) -> float:
    """The number that a text says; NaN if it is no short text. Raises SchemaError if it is no number."""
    try:
        return float(text) if isinstance(text, str) and len(text) <= 32 else math.nan
    except ValueError:
        raise SchemaError(f"the schema's {label} is not a decimal: {text!r}") from None
