"""Evidence that a member signed two results of one share: both announcements, as they were signed.

Decided: whoever has both can show them to anybody, since each carries its signature and names its place in the run; the
first pair of a member and round is kept, of the newest rounds, and goes into the file of events, where it stays. Where
witnesses recorded different results of one member the peers are asked for them, as each peer may have heard one only.
While the epoch goes on the pair is shown to the program, which ejects who signed it: by one member after the other, in
a seeded order, until that is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aftermath.base.errors import BadAnnouncement
from aftermath.member.persist import Duty
from aftermath.member.ports import Ports
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.commitment import Commitment, decode_announcement
from aftermath.rules.consensus import Fingerprint, unpack_fingerprints
from aftermath.rules.deadlines import TICK_STEP, tick_order
from aftermath.rules.run import Attestation
from aftermath.rules.state import MemberState
from aftermath.watch import kinds
from aftermath.watch.events import Events

MOST = MAX_MEMBERS
"""Pairs kept: one of every member that a run can have."""


@dataclass(frozen=True)
class Pair:
    """Two announcements that contradict each other."""

    first: bytes
    second: bytes


def proves(pair: Pair) -> bool:
    """Whether one key signed two different results of the same place in a run; nothing else has to be believed."""
    try:
        one, other = decode_announcement(pair.first), decode_announcement(pair.second)
    except BadAnnouncement:
        return False
    return (
        isinstance(one, Commitment)
        and isinstance(other, Commitment)
        and _place(one) == _place(other)
        and one.digest != other.digest
    )


def _place(said: Commitment) -> tuple[object, ...]:
    return said.sender, said.signer, said.run_id, said.epoch, said.height, said.seed, said.seat


def disputed(attestations: Iterable[Attestation], roster: int) -> frozenset[int]:
    """The seats of which witnesses recorded different results."""
    seen: dict[int, set[Fingerprint]] = {}
    for attestation in attestations:
        for seat, found in unpack_fingerprints(attestation, roster).items():
            seen.setdefault(seat, set()).add(found)
    return frozenset(seat for seat, found in seen.items() if len(found) > 1)


class Evidence:
    """The pairs that this member has come to know."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._kept: dict[tuple[int, int, int], Pair] = {}
        self.show: Callable[[Commitment, Pair], None] | None = None
        """Called with a pair that is new, and one of its commitments."""

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """All that are kept, oldest first."""
        return tuple(self._kept.values())

    def add(self, first: Commitment, raw: bytes, other_raw: bytes) -> None:
        """Keep two announcements of one place, unless there is a pair of it or they prove nothing."""
        place, pair = (first.epoch, first.height, first.seat), Pair(raw, other_raw)
        if place in self._kept or not proves(pair):
            return
        self._kept[place] = pair
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        self._events.emit(
            kinds.Equivocated(
                epoch=first.epoch, height=first.height, seat=first.seat, first=raw.hex(), second=other_raw.hex()
            )
        )
        if self.show is not None:
            self.show(first, pair)


async def show_equivocation(ports: Ports, seat: int, said: Commitment, pair: Pair) -> None:
    """Have the member ejected that signed both, when it is our turn and nobody did it before us; `seat` is our own."""
    order = [one for one in tick_order(ports.feed.run, ports.feed.members) if one != said.seat]
    if seat not in order:
        return
    await ports.clock.sleep(TICK_STEP * order.index(seat))

    def wanted() -> bool:
        run, member = ports.feed.run, ports.feed.members.seats[said.seat]
        here = member.state not in (MemberState.IDLE, MemberState.EJECTED)
        return here and run.active and run.epoch == said.epoch

    duty = Duty(ports, "the proof that a member signed two results", wanted=wanted)
    if await duty.fulfil(lambda: ports.coordinator.prove_equivocation(pair.first, pair.second)):
        ports.events.emit(kinds.Ejected(seat=said.seat, height=said.height))
