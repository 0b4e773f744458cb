"""Checks of the numbers in an optimizer's settings."""

from __future__ import annotations

import math

from aftermath.model.schema import SchemaError


def within_u16(label: str, number: int, fix: str) -> None:
    """Raise SchemaError unless `number` is from 1 to 65535."""
    if not 1 <= number <= 65535:
        raise SchemaError(f"{label} must be from 1 to 65535, not {number}", fix)


def at_least_zero(label: str, number: float, fix: str, *, most: float = math.inf) -> float:
    """Return the number as a float. Raises SchemaError unless it is finite and from 0 to `most`."""
    if not (math.isfinite(number) and number >= 0):
        raise SchemaError(f"{label} must be a finite number, at least 0, not {number!r}", fix)
    if number > most:
        raise SchemaError(f"{label} must be at most {most:g}, not {number!r}", fix)
    return float(number)
