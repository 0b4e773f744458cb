"""What becomes of sequences that nobody trained: the program's backlog, as pure functions.

The chain keeps up to eight intervals of sequences, oldest first. A round takes from the first of them before anything
fresh, so no data is skipped; what does not fit is counted as lost. Members only read the result in `Run`: this says the
program's rule a second time, for tests to hold against the compiled program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aftermath.rules import bitmap
from aftermath.rules.accounts import BACKLOG, Interval, Round
from aftermath.rules.assignment import PositionInterval, sequences


@dataclass(frozen=True, slots=True)
class Backlog:
    """Intervals that wait to be trained, oldest first, and how many sequences did not fit so far."""

    intervals: tuple[Interval, ...] = ()
    lost: int = 0

    def put(self, positions: Iterable[PositionInterval], header: Round) -> Backlog:
        """Add untrained positions of a round, given in ascending order."""
        backlog = self
        for interval in _merged(positions):
            for indices in sequences(header, interval):
                backlog = backlog._push(indices)
        return backlog

    def take(self, batch: int) -> tuple[int, int, Backlog]:
        """(first sequence, count, what is left): up to `batch` sequences of the oldest interval, (0, 0) when
        none waits.
        """
        if not self.intervals:
            return 0, 0, self
        first, *rest = self.intervals
        count = min(first.len, batch)
        left = [Interval(first.start + count, first.len - count)] if count < first.len else []
        return first.start, count, Backlog((*left, *rest), self.lost)

    def _push(self, indices: range) -> Backlog:
        if self.intervals and self.intervals[-1].stop == indices.start:
            last = self.intervals[-1]
            return Backlog((*self.intervals[:-1], Interval(last.start, last.len + len(indices))), self.lost)
        if len(self.intervals) == BACKLOG:
            return Backlog(self.intervals, self.lost + len(indices))
        return Backlog((*self.intervals, Interval(indices.start, len(indices))), self.lost)


def settle(backlog: Backlog, header: Round, shares: Mapping[int, PositionInterval], attested: int) -> Backlog:
    """The backlog once round `header` is settled: the shares (in position order) of members not attested come back."""
    missing = (share for slot, share in shares.items() if share.len and not bitmap.contains(attested, slot))
    return backlog.put(missing, header)


def put_back(backlog: Backlog, header: Round) -> Backlog:
    """The backlog after a round that closed without a single attestation: all of its data comes back."""
    return backlog.put([PositionInterval(0, header.batch)], header)


def _merged(positions: Iterable[PositionInterval]) -> list[PositionInterval]:
    merged: list[PositionInterval] = []
    for interval in positions:
        if merged and merged[-1].stop == interval.start:
            merged[-1] = PositionInterval(merged[-1].start, interval.stop)
        else:
            merged.append(interval)
    return merged
