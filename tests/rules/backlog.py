"""The program's backlog as pure functions, to compare with the compiled program.

The chain keeps untrained intervals in ascending order, joined where they touch. A round takes the
first few of them before any fresh sequence. If a round's gaps do not fit, it does not count and
returns as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aftermath.rules import bitmap
from aftermath.rules.assignment import PositionInterval, sequences
from aftermath.rules.run import BACKLOG, REDO, Interval, Round

ROOM = 2 * (REDO + 1)
"""Places that stay free for the intervals of two rounds that are under way."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Intervals that wait to be trained, ascending."""

    intervals: tuple[Interval, ...] = ()

    @property
    def waiting(self) -> int:
        return sum(interval.len for interval in self.intervals)

    def has_room(self, more: int) -> bool:
        return len(self.intervals) + more + ROOM <= BACKLOG

    def put(self, intervals: Iterable[Interval]) -> Backlog:
        """Add untrained sequences."""
        joined: list[Interval] = []
        for interval in sorted([*self.intervals, *intervals], key=lambda one: one.start):
            if joined and joined[-1].stop == interval.start:
                joined[-1] = Interval(joined[-1].start, joined[-1].len + interval.len)
            else:
                joined.append(interval)
        assert len(joined) <= BACKLOG
        return Backlog(tuple(joined))

    def take(self, batch: int) -> tuple[tuple[Interval, ...], Backlog]:
        """Return what a round of `batch` sequences trains again, and the remaining backlog."""
        taken: list[Interval] = []
        left = list(self.intervals)
        for first in self.intervals[:REDO]:
            count = min(first.len, batch)
            batch -= count
            if count:
                taken.append(Interval(first.start, count))
            left[0] = Interval(first.start + count, first.len - count)
            if left[0].len:
                break
            del left[0]
        return tuple(taken), Backlog(tuple(left))

    def batch(self, size: int) -> int:
        """Return the sequences of a round of `size` sequences, taken from this backlog."""
        taken, left = self.take(size)
        return size if left.has_room(0) else sum(interval.len for interval in taken)


@dataclass(frozen=True, slots=True)
class Settled:
    """The outcome of a round: who counts, whether it made a step, and the new backlog."""

    attested: int
    worked: bool
    backlog: Backlog


def settle(
    backlog: Backlog, header: Round, shares: Mapping[int, PositionInterval], agreed: int
) -> Settled:
    """Settle round `header`. The shares (in position order) of members without a quorum return."""
    idle = bitmap.from_seats(seat for seat, share in shares.items() if share.len == 0)
    missing = _merged(
        share for seat, share in shares.items() if share.len and not bitmap.contains(agreed, seat)
    )
    untrained = [Interval(r.start, len(r)) for gap in missing for r in sequences(header, gap)]
    if untrained and not backlog.has_room(len(untrained)):
        return Settled(idle, False, put_back(backlog, header))
    worked = any(share.len and bitmap.contains(agreed, seat) for seat, share in shares.items())
    return Settled(agreed & header.roster | idle, worked, backlog.put(untrained))


def put_back(backlog: Backlog, header: Round) -> Backlog:
    """Return the backlog after a round without attestations: all of its data returns."""
    return backlog.put(header.pieces)


def _merged(positions: Iterable[PositionInterval]) -> list[PositionInterval]:
    merged: list[PositionInterval] = []
    for interval in positions:
        if merged and merged[-1].stop == interval.start:
            merged[-1] = PositionInterval(merged[-1].start, interval.stop)
        else:
            merged.append(interval)
    return merged
