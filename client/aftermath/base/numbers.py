"""The largest whole numbers that Solana's JSON, accounts and instructions have room for, and the limits of a number
that is annotated with them.
"""

from __future__ import annotations

from typing import NamedTuple

U32_MAX, U64_MAX = (1 << 32) - 1, (1 << 64) - 1


class Limits(NamedTuple):
    """The least and the most, by the names that pydantic has for them; None: there is no such limit."""

    ge: int
    le: int | None = None
