"""Whom we keep out for having sent what no correct member sends, and for how long.

Decided: the time doubles with each offence of a key, so that a persistent offender costs us less
and less; it falls back to the first once nothing was held against the key for as long as a peer can
be kept out. What is known of a key stays when it leaves the run and comes back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from aftermath.p2p.quota import REMEMBERED_PEERS

FIRST_S = 10.0
LONGEST_S = 1800.0


@dataclass
class _Record:
    offences: int
    until: float


class Bars:
    """`clock` returns seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: OrderedDict[bytes, _Record] = OrderedDict()

    def offended(self, peer: bytes) -> float:
        """Keep this peer out, longer than the last time; returns for how many seconds."""
        now, before = self._clock(), self._known.pop(peer, None)
        again = before is not None and now < before.until + LONGEST_S
        offences = before.offences + 1 if before is not None and again else 1
        seconds = min(LONGEST_S, FIRST_S * 2.0 ** min(offences - 1, 16))
        self._known[peer] = _Record(offences, now + seconds)
        while len(self._known) > REMEMBERED_PEERS:
            self._known.popitem(last=False)
        return seconds

    def left(self, peer: bytes) -> float:
        """Seconds for which this peer is still kept out; 0 if it is not."""
        known = self._known.get(peer)
        return max(0.0, known.until - self._clock()) if known is not None else 0.0
