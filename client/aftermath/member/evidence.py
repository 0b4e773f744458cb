"""Evidence that a member signed two results of one share: both signed announcements.

Anyone can check the pair, because each announcement carries its signature and its place in the run.
This member keeps the first pair per signer and round and emits it as an event. While the epoch
runs, members submit it to the program, which ejects the signer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aftermath.base.errors import BadAnnouncement
from aftermath.events import event_types
from aftermath.events.stream import Events
from aftermath.member.ports import Ports
from aftermath.member.retry import Duty
from aftermath.rules.announcements import Commitment, decode_announcement
from aftermath.rules.bitmap import MAX_MEMBERS
from aftermath.rules.consensus import Fingerprint, unpack_fingerprints
from aftermath.rules.deadlines import tick_delay, tick_order
from aftermath.rules.run import Attestation
from aftermath.rules.state import MemberState

MOST = MAX_MEMBERS
"""Maximum number of pairs: one for every member that a run can have."""


@dataclass(frozen=True)
class Pair:
    """Two announcements that contradict each other."""

    first: bytes
    second: bytes


def proves(pair: Pair) -> bool:
    """Return whether one key signed two different results for the same place in a run."""
    try:
        one = decode_announcement(pair.first)
        other = decode_announcement(pair.second)
    except BadAnnouncement:
        return False
    return (
        isinstance(one, Commitment)
        and isinstance(other, Commitment)
        and _result_of(one) == _result_of(other)
        and one.digest != other.digest
    )


def _result_of(commitment: Commitment) -> tuple[object, ...]:
    return (
        commitment.sender,
        commitment.signer,
        commitment.run_id,
        commitment.epoch,
        commitment.height,
        commitment.seed,
        commitment.seat,
    )


def disputed(attestations: Iterable[Attestation], roster: int) -> frozenset[int]:
    """Return the seats for which witnesses recorded different results.

    A peer may have received only one of the results, so this member asks its peers for both.
    """
    fingerprints: dict[int, set[Fingerprint]] = {}
    for attestation in attestations:
        for seat, fingerprint in unpack_fingerprints(attestation, roster).items():
            fingerprints.setdefault(seat, set()).add(fingerprint)
    return frozenset(seat for seat, different in fingerprints.items() if len(different) > 1)


class Evidence:
    """The pairs that this member knows."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._pairs: dict[tuple[int, int, int], Pair] = {}
        self.on_pair: Callable[[Commitment, Pair], None] | None = None
        """Called with a new pair and one of its commitments."""

    def add(self, first: Commitment, raw: bytes, other_raw: bytes) -> None:
        """Keep two announcements of one seat and round, if they prove equivocation and are new."""
        key = (first.epoch, first.height, first.seat)
        pair = Pair(raw, other_raw)
        if key in self._pairs or not proves(pair):
            return
        self._pairs[key] = pair
        if len(self._pairs) > MOST:
            del self._pairs[next(iter(self._pairs))]
        self._events.emit(
            event_types.Equivocated(
                epoch=first.epoch,
                height=first.height,
                seat=first.seat,
                first=raw.hex(),
                second=other_raw.hex(),
            )
        )
        if self.on_pair is not None:
            self.on_pair(first, pair)


async def show_equivocation(ports: Ports, seat: int, commitment: Commitment, pair: Pair) -> None:
    """Submit the proof when it is this member's turn, unless the signer is already ejected.

    A seeded order determines the turns. `seat` is this member's seat.
    """
    order = [
        other
        for other in tick_order(ports.feed.run, ports.feed.members)
        if other != commitment.seat
    ]
    if seat not in order:
        return
    await ports.clock.sleep(tick_delay(order.index(seat)))

    def is_needed() -> bool:
        run = ports.feed.run
        member = ports.feed.members.seats[commitment.seat]
        in_run = member.state not in (MemberState.IDLE, MemberState.EJECTED)
        return in_run and run.active and run.epoch == commitment.epoch

    duty = Duty(ports, "the proof that a member signed two results", still_wanted=is_needed)
    if await duty.fulfil(lambda: ports.coordinator.prove_equivocation(pair.first, pair.second)):
        ports.events.emit(event_types.Ejected(seat=commitment.seat, height=commitment.height))
