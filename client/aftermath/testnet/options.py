"""What may be asked for of how a local testnet is seen: the words of its options, which are read before anything else.

Decided: nothing is imported here that takes time, since help lists these words.
"""

from __future__ import annotations

from enum import StrEnum


class Pictures(StrEnum):
    """What is drawn, where there is a terminal."""

    TRUE = "true"
    SCREEN = "screen"
    FALSE = "false"
