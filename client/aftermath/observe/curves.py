"""Curves of a run by tier, in bounded memory however long it is: loss, and bytes that members have sent.

Decided
- Steps share a place, two and two more of them, once there are too many: a mean over them, weighed by tokens.
- A tier's loss is what events tell of its shares; of tiers without events what its witnesses stated on chain, rounded
  there to a thousandth and unproven.
- Whatever a file says is bounded here: tiers that cannot be, and steps before the first, are passed over; so are losses
  that a witness states and no model has, or one of them would make all others a line at the bottom.
"""

from __future__ import annotations

from collections import defaultdict

from aftermath.rules.limits import MAX_LEVELS

MOST_PLACES = 2048
MOST_POINTS = 400
_MOST_STEP = 1 << 40
_MOST_STATED = 100.0  # nats per token; one that guesses among a million tokens has 14

Points = list[tuple[int, float]]


class _Curve:
    """Sums of values and of their weights, by step; `places` are `1 << shift` steps wide."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, float, float]] = {}
        self._shift = 0

    def add(self, step: int, value: float, weight: float) -> None:
        if not 0 <= step < _MOST_STEP:
            return
        last, total, weights = self._places.get(step >> self._shift, (0, 0.0, 0.0))
        self._places[step >> self._shift] = max(last, step), total + value * weight, weights + weight
        while len(self._places) > MOST_PLACES:
            self._halve()

    def _halve(self) -> None:
        before, self._places = self._places, {}
        self._shift += 1
        for place, (last, total, weights) in before.items():
            other = self._places.get(place >> 1, (0, 0.0, 0.0))
            self._places[place >> 1] = max(last, other[0]), total + other[1], weights + other[2]

    def sums(self) -> list[tuple[int, float, float]]:
        return sorted(self._places.values())


class Losses:
    """Loss by tier."""

    def __init__(self) -> None:
        self._told: dict[int, _Curve] = defaultdict(_Curve)
        self._stated: dict[int, _Curve] = defaultdict(_Curve)

    def told(self, tier: int, step: int, loss: float, tokens: int) -> None:
        """From an event."""
        if 0 <= tier < MAX_LEVELS:
            self._told[tier].add(step, loss, max(1, tokens))

    def stated(self, tier: int, step: int, loss: float) -> None:
        """From an attestation on chain."""
        if 0 <= loss <= _MOST_STATED:
            self._stated[tier].add(step, loss, 1.0)

    def by_tier(self) -> dict[int, Points]:
        """(step, loss) of each tier, no more than MOST_POINTS of them."""
        found = {**self._stated, **self._told}
        return {tier: _means(curve.sums()) for tier, curve in sorted(found.items())}


class Sent:
    """Bytes that members of a tier have sent to peers until a step."""

    def __init__(self) -> None:
        self._more: dict[int, _Curve] = defaultdict(_Curve)

    def add(self, tier: int, step: int, more: int) -> None:
        """Record that a member of the tier has sent `more` bytes."""
        if 0 <= tier < MAX_LEVELS and more > 0:
            self._more[tier].add(step, float(more), 1.0)

    def by_tier(self) -> dict[int, Points]:
        """(step, bytes until then) of each tier."""
        found: dict[int, Points] = {}
        for tier, curve in sorted(self._more.items()):
            total, points = 0.0, []
            for step, more, _ in curve.sums():
                total += more
                points.append((step, total))
            found[tier] = [points[end] for end in _ends(len(points))]
        return found


def _means(sums: list[tuple[int, float, float]]) -> Points:
    points, begin = [], 0
    for end in _ends(len(sums)):
        part = sums[begin : end + 1]
        points.append((part[-1][0], sum(total for _, total, _ in part) / sum(weights for _, _, weights in part)))
        begin = end + 1
    return points


def _ends(count: int) -> list[int]:
    """Return the ends of at most MOST_POINTS groups of `count` points. The last one always ends a
    group.
    """
    width = -(-count // MOST_POINTS) or 1
    return sorted({*range(width - 1, count, width), count - 1} - {-1})
