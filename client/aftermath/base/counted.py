"""A number with the noun it counts, in the form that the number asks for."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """`1 round`, `2 rounds`, `1,200 rounds`; `many` where it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
