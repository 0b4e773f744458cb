"""Choose which piece of a blob to ask which peer for next. It has no I/O; `p2p.swarm` fetches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from aftermath.p2p.pieces import Pieces

STALL_S = 2.0
"""Seconds without a byte after which a fetch asks any member for any piece."""
FAIR = 0.5
"""A relay stays reliable if it sent at least this fraction of its equal share of a late blob."""
_BEGINNING = 0.5
"""Fraction of the expected time before which a fetch never counts as late."""
STRIKES = 3
"""Pieces that a peer may fail to send before a fetch stops asking it."""


@dataclass(eq=False)
class PiecePull:
    """One request for one piece. `started` and `last_byte_at` are on the member's clock."""

    peer: bytes
    index: int
    started: float
    last_byte_at: float


@dataclass(eq=False)
class PieceFetch:
    """The state of one fetch.

    `first` is the piece at which this member starts; it differs between members. `strong` are the
    members that relay the blob: they ask the author, and all others ask them.
    """

    digest: bytes
    author: bytes
    me: bytes
    pieces: Pieces
    first: int
    started: float
    expected_s: float
    """Seconds in which the blob should arrive. Otherwise relays could delay it at will."""
    progress_at: float
    strong: frozenset[bytes]
    sources: set[bytes]
    """Peers to ask. The author is one of them."""
    held_by: dict[bytes, int] = field(default_factory=dict)
    pulled_by: dict[bytes, int] = field(default_factory=dict)
    strikes: Counter[bytes] = field(default_factory=Counter)
    delivered: Counter[bytes] = field(default_factory=Counter)
    """Pieces that each peer has sent."""
    pulls: list[PiecePull] = field(default_factory=list)
    open_to_all: bool = False
    """Whether the fetch has stalled or is late. It then asks any member for any piece."""
    failed: bool = False
    """Whether the author was caught with a false list or piece."""
    ended: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, peer: bytes, status: bytes) -> None:
        """Record which pieces a peer holds and fetches. An invalid or empty status means none."""
        width = -(-self.pieces.count // 8)
        known = len(status) == 2 * width
        self.held_by[peer] = int.from_bytes(status[:width], "little") if known else 0
        self.pulled_by[peer] = int.from_bytes(status[width:], "little") if known else 0

    def strike(self, peer: bytes, index: int) -> None:
        """Count a piece that a peer failed to send, and drop the peer at STRIKES of them."""
        self.held_by[peer] = self.held_by.get(peer, 0) & ~(1 << index)
        self.strikes[peer] += 1
        if self.strikes[peer] >= STRIKES:
            self.drop(peer)

    def drop(self, peer: bytes) -> None:
        """Stop asking this peer, and forget which pieces it holds."""
        self.sources.discard(peer)
        self.held_by.pop(peer, None)
        self.pulled_by.pop(peer, None)

    def choose(self, peer: bytes, now: float, silent_s: float) -> int | None:
        """Return the piece to ask this peer for, or None.

        A piece that another peer is sending can be requested again after that peer has been silent
        for `silent_s`, or if the fetch is late and nothing else is left to ask for.
        """
        if peer not in self.sources:
            return None
        self.open_to_all |= self._is_late(now) or now - self.progress_at > STALL_S
        candidates = ~self.pieces.held & ((1 << self.pieces.count) - 1)
        if peer != self.author:
            helps = self.open_to_all or peer in self.strong
            candidates &= self.held_by.get(peer, 0) if helps else 0
        elif self.open_to_all:
            pass
        elif {self.me, peer} & self.strong:
            candidates &= ~self._spoken_for()
        else:
            candidates = 0
        candidates &= ~self._pulled(pull for pull in self.pulls if pull.peer == peer)
        alive = [pull for pull in self.pulls if now - pull.last_byte_at <= silent_s]
        free = self._next(candidates & ~self._pulled(alive))
        if free is not None or not self.open_to_all:
            return free
        # Relays must not be able to keep a piece from us by sending it slowly. So the author may
        # always be asked for it, and a second relay too.
        often = Counter(pull.index for pull in alive)
        twice = sum(1 << index for index, count in often.items() if count > 1)
        return self._next(candidates if peer == self.author else candidates & ~twice)

    def _is_late(self, now: float) -> bool:
        """Return whether the fetch is behind a steady pace, after half of the time."""
        spent = (now - self.started) / self.expected_s
        return spent > _BEGINNING and self.pieces.held.bit_count() < spent * self.pieces.count

    def unreliable(self) -> frozenset[bytes]:
        """Return the relays that left a late or stalled fetch waiting."""
        relays = self.strong - {self.author}
        if not self.open_to_all or not relays:
            return frozenset()
        least = FAIR * self.pieces.count / len(relays)
        return frozenset(peer for peer in relays - {self.me} if self.delivered[peer] < least)

    @staticmethod
    def _pulled(pulls: Iterable[PiecePull]) -> int:
        pieces = 0
        for pull in pulls:
            pieces |= 1 << pull.index
        return pieces

    def _next(self, candidates: int) -> int | None:
        """Return the first wanted piece from `first` on, then from 0 on, or None."""
        after = candidates >> self.first << self.first
        lowest = after or candidates
        return (lowest & -lowest).bit_length() - 1 if lowest else None

    def _spoken_for(self) -> int:
        """Return the pieces that strong members hold or fetch, so we need not ask the author."""
        pieces = 0
        for peer in (self.sources & self.strong) - {self.author}:
            pieces |= self.held_by.get(peer, 0) | self.pulled_by.get(peer, 0)
        return pieces

    def begin(self, pull: PiecePull) -> None:
        """Record a request."""
        self.pulls.append(pull)
        self._note_pulled()

    def end(self, pull: PiecePull) -> None:
        """Record that a request has ended, successfully or not."""
        self.pulls.remove(pull)
        self._note_pulled()

    def _note_pulled(self) -> None:
        self.pieces.pulled = self._pulled(pull for pull in self.pulls if pull.peer == self.author)


def strongest(uplinks: Sequence[tuple[bytes, float]]) -> frozenset[bytes]:
    """Return the members that relay blobs, given upload rates in bytes per second.

    These are all members with at least half of the fastest rate. If they have less than half of
    the total rate, the next fastest are added until they do. So relaying through few members never
    takes longer than if all members had equal shares of the same total.
    """
    ranked = sorted(uplinks, key=lambda item: (-item[1], item[0]))
    total = sum(rate for _, rate in ranked)
    chosen = []
    together = 0.0
    for peer, rate in ranked:
        if 2 * rate < ranked[0][1] and 2 * together >= total:
            break
        chosen.append(peer)
        together += rate
    return frozenset(chosen)
