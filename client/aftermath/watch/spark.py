"""A row of numbers as a line of bars."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def spark(values: Sequence[float], width: int = 60) -> str:
    """The last `width` values as bars; the lowest and the highest of them are the ends of the scale."""
    shown = values[-width:]
    if not shown:
        return ""
    low = min(shown)
    scale = (max(shown) - low) or 1.0
    return "".join(_BARS[round((value - low) / scale * (len(_BARS) - 1))] for value in shown)
