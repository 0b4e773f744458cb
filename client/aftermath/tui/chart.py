"""A curve as lines of bars with a scale, for a tab that has room for more than one line of it."""

from __future__ import annotations

from collections.abc import Sequence

from aftermath.watch.spark import evenly

_EIGHTHS = " ▁▂▃▄▅▆▇█"
LABEL = 8
"""Columns of the scale."""


def chart(curve: Sequence[tuple[int, float]], width: int, height: int) -> list[str]:
    """(step, value) in `width` columns and `height` lines, with the highest and lowest value and
    the first and last step.

    Few points are drawn wider, and of many those that have no room are left out evenly, never the
    first or the last.
    """
    room = width - LABEL
    if not curve or room < 8 or height < 3:
        return []
    wide = max(1, room // len(curve))  # columns of a point
    values = [curve[index][1] for index in evenly(len(curve), room) for _ in range(wide)]
    low, high = min(values), max(values)
    rows, scale = height - 1, (high - low) or 1.0
    tall = [1 + round((value - low) / scale * (rows * 8 - 1)) for value in values]  # eighths of a line
    lines = []
    for row in range(rows - 1, -1, -1):
        label = f"{high:.3f}" if row == rows - 1 else f"{low:.3f}" if row == 0 else ""
        bars = "".join(_EIGHTHS[max(0, min(8, eighths - 8 * row))] for eighths in tall)
        lines.append(f"{label:>{LABEL - 1}} {bars}".rstrip())
    first, last = f"step {curve[0][0]:,}", f"{curve[-1][0]:,}"
    gap = len(values) - len(first) - len(last)
    lines.append(" " * LABEL + (first + " " * gap + last if gap > 0 and curve[0][0] != curve[-1][0] else first))
    return lines
