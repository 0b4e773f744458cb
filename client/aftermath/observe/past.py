"""What a run was like before: moments by their time, in bounded memory.

Decided: moments are kept as compressed JSON, since a page asks for one at a time. When there are too many, every second
one of the older half goes: what is near in time stays exact, what is long past becomes coarse, and the first one stays.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort

import msgspec

from aftermath.observe.moment import Moment

MOST_MOMENTS = 2000
MOST_BYTES = 8 << 20


class Past:
    """The moments of one run that are remembered."""

    def __init__(self, most: int = MOST_MOMENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: list[tuple[int, bytes]] = []
        self._bytes = 0

    def keep(self, moment: Moment) -> None:
        """Remember a moment; one of the same millisecond takes the other's place."""
        self.forget(moment.at)
        packed = zlib.compress(msgspec.json.encode(moment), 1)
        insort(self._kept, (moment.at, packed))
        self._bytes += len(packed)
        while len(self._kept) > self._most or (self._bytes > self._most_bytes and len(self._kept) > 2):
            self._thin()

    def forget(self, at: int) -> None:
        """Drop the moment of exactly this time, if there is one."""
        place = self._place(at)
        if place >= 0 and self._kept[place][0] == at:
            self._bytes -= len(self._kept.pop(place)[1])

    def times(self) -> list[int]:
        """When they were, ascending."""
        return [at for at, _ in self._kept]

    def before(self, at: int) -> bytes | None:
        """The JSON of the last moment at or before this time; of the first one if all are later, None if none is."""
        if not self._kept:
            return None
        return zlib.decompress(self._kept[max(0, self._place(at))][1])

    def _place(self, at: int) -> int:
        return bisect_right(self._kept, at, key=lambda kept: kept[0]) - 1

    def _thin(self) -> None:
        half = max(3, len(self._kept) // 2)
        del self._kept[1:half:2]
        self._bytes = sum(len(packed) for _, packed in self._kept)
