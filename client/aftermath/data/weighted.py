"""Several sources mixed by weight.

Decided
- A cycle of CYCLE places is dealt out once, in whole numbers: each place goes to the source that is furthest behind its
  weight, the earlier one of equals. So which source a sequence comes from follows from its number by arithmetic, on
  every platform, and each source is read in its own order, pass after pass.
- Without weights, sources count by their length. A source whose weight is too small for one place of a cycle is refused
  rather than left out.
- One pass is as long as all sources together. The mixture may have an order of its own on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

import numpy as np

from aftermath.data.shuffle import Order
from aftermath.data.source import DataError, FileRecord, Sequences, Source, check_sequences

CYCLE = 4096
MOST_SOURCES = 64


class WeightedSources:
    """A mixture. `mark` stands for the document that describes it; `weights` None: by length."""

    def __init__(
        self,
        sources: Sequence[Source],
        weights: Sequence[float] | None,
        *,
        mark: FileRecord | None = None,
        shuffle_seed: bytes | None = None,
    ) -> None:
        """Raises DataError."""
        if not 1 <= len(sources) <= MOST_SOURCES:
            raise DataError(f"a mixture has 1 to {MOST_SOURCES} sources, not {len(sources)}")
        given = weights if weights is not None else [source.sequences for source in sources]
        if not all(isfinite(weight) and weight > 0 for weight in given):
            raise DataError("every weight of a mixture is a number above 0", "Leave out what is not to be used")
        self._sources, self._mark = sources, mark
        self._length = sum(source.sequences for source in sources)
        self._order = Order(self._length, shuffle_seed) if shuffle_seed is not None else None
        self._dealt = dealt(given)
        counts = [0] * len(sources)
        self._ranks = []  # of each place: how many earlier places of the cycle have the same source
        for which in self._dealt:
            self._ranks.append(counts[which])
            counts[which] += 1
        self._counts = counts
        if 0 in counts:
            raise DataError(
                f"source {counts.index(0)} of a mixture has less than 1/{CYCLE} of the weight",
                "Leave it out, or raise its weight",
            )

    @property
    def sequences(self) -> int:
        """Those of all sources."""
        return self._length

    @property
    def seq_len(self) -> int:
        """Tokens of each."""
        return self._sources[0].seq_len

    def read(self, indices: Sequence[int]) -> Sequences:
        """Tokens [n, seq_len]. Raises what the sources raise."""
        check_sequences(indices)
        places = [self.place(index) for index in indices]
        out = np.empty((len(indices), self.seq_len), np.int64)
        for which, source in enumerate(self._sources):
            if rows := [row for row, place in enumerate(places) if place[0] == which]:
                out[rows] = source.read([places[row][1] for row in rows])
        return out

    def record(self) -> tuple[FileRecord, ...]:
        """What marks the files of all sources, and the mixture's own document."""
        own = (self._mark,) if self._mark else ()
        return (*own, *(record for source in self._sources for record in source.record()))

    def place(self, index: int) -> tuple[int, int]:
        """Which source a sequence is of, and its number there."""
        if self._order is not None:
            turn, inside = divmod(index, self._length)
            index = turn * self._length + self._order.at(inside, turn)
        cycle, at = divmod(index, CYCLE)
        which = self._dealt[at]
        return which, cycle * self._counts[which] + self._ranks[at]


def dealt(weights: Sequence[float]) -> list[int]:
    """Which source each place of a cycle goes to, by exact arithmetic."""
    exact = [Fraction(weight) for weight in weights]
    total, counts, places = sum(exact), [0] * len(exact), []
    shares = [weight / total for weight in exact]
    for done in range(1, CYCLE + 1):
        which = max(range(len(shares)), key=lambda one: (shares[one] * done - counts[one], -one))
        counts[which] += 1
        places.append(which)
    return places
