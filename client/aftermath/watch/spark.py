"""A row of numbers as a line of bars, a loss curve as one that says what it draws, and which points have room."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def evenly(total: int, room: int) -> list[int]:
    """At most `room` of the indices below `total`, evenly, with both ends."""
    count = min(room, total)
    return [index * (total - 1) // max(1, count - 1) for index in range(count)]


def spark(values: Sequence[float]) -> str:
    """One bar per value; the lowest and the highest of them are the ends of the scale."""
    if not values:
        return ""
    low = min(values)
    scale = (max(values) - low) or 1.0
    return "".join(_BARS[round((value - low) / scale * (len(_BARS) - 1))] for value in values)


def course(curve: Sequence[tuple[int, float]], width: int) -> str:
    """A loss curve of (step, loss) in a line of `width` characters: which steps, the first loss, bars, the last loss.

    Points that have no room are left out evenly; the first and the last are always drawn, and are what the ends say.
    """
    if not curve:
        return "no loss yet"
    (first, begin), (last, end) = curve[0], curve[-1]
    if first == last:
        return f"loss at step {first}: {end:.3f}"
    left, right = f"loss, steps {first} to {last}:  {begin:.3f} ", f" {end:.3f}"
    drawn = evenly(len(curve), max(2, width - len(left) - len(right)))
    return left + spark([curve[index][1] for index in drawn]) + right
