"""Values of the testnet's display option. Imports nothing slow, because help lists them."""

from __future__ import annotations

from enum import StrEnum


class DisplayOption(StrEnum):
    """What to draw if there is a terminal."""

    TRUE = "true"
    SCREEN = "screen"
    FALSE = "false"
