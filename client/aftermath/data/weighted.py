"""Several sources mixed by weight. Without weights, each source is weighted by its length.

One pass is as long as all sources together. The mixture itself may also be shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

import numpy as np

from aftermath.data.shuffle import ShuffledOrder
from aftermath.data.source import DataError, FileRecord, Sequences, Source, check_sequences

CYCLE = 4096
MOST_SOURCES = 64


class WeightedSources:
    """A mixture. `mark` is the record of the document that describes it."""

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float] | None,
        *,
        mark: FileRecord | None = None,
        shuffle_seed: bytes | None = None,
    ) -> None:
        """Mix sources, by length if `weights` is None. Raise DataError."""
        if not 1 <= len(sources) <= MOST_SOURCES:
            raise DataError(f"a mixture must have 1 to {MOST_SOURCES} sources, not {len(sources)}")
        shares = weights if weights is not None else [source.sequences for source in sources]
        if not all(isfinite(weight) and weight > 0 for weight in shares):
            raise DataError(
                "every weight of a mixture must be above 0",
                "Remove the sources that you do not want to use",
            )
        self._sources = sources
        self._mark = mark
        self._length = sum(source.sequences for source in sources)
        self._order = (
            ShuffledOrder(self._length, shuffle_seed) if shuffle_seed is not None else None
        )
        self._cycle = cycle_sources(shares)
        counts = [0] * len(sources)
        # for each position: how many earlier positions of the cycle have the same source
        self._ranks = []
        for which in self._cycle:
            self._ranks.append(counts[which])
            counts[which] += 1
        self._counts = counts
        if 0 in counts:
            raise DataError(
                f"source {counts.index(0)} of a mixture has less than 1/{CYCLE} of the weight",
                "Remove it, or raise its weight",
            )

    @property
    def sequences(self) -> int:
        """Sequences of all sources together."""
        return self._length

    @property
    def seq_len(self) -> int:
        """Tokens per sequence."""
        return self._sources[0].seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Return tokens [n, seq_len]. Raise what the sources raise."""
        check_sequences(indices)
        located = [self.locate(index) for index in indices]
        out = np.empty((len(indices), self.seq_len), np.int64)
        for which, source in enumerate(self._sources):
            if rows := [row for row, (owner, _) in enumerate(located) if owner == which]:
                out[rows] = source.read([located[row][1] for row in rows])
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """Return the records of the mixture's document and of the files of all sources."""
        own = (self._mark,) if self._mark else ()
        return (*own, *(record for source in self._sources for record in source.record()))

    def locate(self, index: int) -> tuple[int, int]:
        """Return the source of a sequence and its number there."""
        if self._order is not None:
            turn, inside = divmod(index, self._length)
            index = turn * self._length + self._order.at(inside, turn)
        cycle, at = divmod(index, CYCLE)
        which = self._cycle[at]
        return which, cycle * self._counts[which] + self._ranks[at]


# Each position of a cycle goes to the source that is furthest behind its weight; ties go to the
# earlier source. So a sequence number determines its source on every platform. Sources whose weight
# is too small for one position are refused.
def cycle_sources(weights: Sequence[float]) -> list[int]:
    """Return the source of each position of a cycle, by exact arithmetic."""
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    counts = [0] * len(exact)
    positions = []
    shares = [weight / total for weight in exact]
    for count in range(1, CYCLE + 1):
        which = max(range(len(shares)), key=lambda one: (shares[one] * count - counts[one], -one))
        counts[which] += 1
        positions.append(which)
    return positions
