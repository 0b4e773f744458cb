"""The accounts `Members` and `Membership` as frozen dataclasses.

Fields have the program's names and the forms described in `run`.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.state import MemberState


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a run.

    `declared` is its speed in sequences per minute. `weight` sets its share in the running epoch;
    between epochs it is the limit for the next one (0 for a newcomer). `pending`: it waits for the
    next epoch. `removed`: an authority took it out of the queue. `barred`: it may not rejoin.
    """

    signer: bytes
    p2p: bytes
    tier: int
    state: MemberState
    pending: bool
    removed: bool
    barred: bool
    used: bool
    weight: int
    declared: int
    last_epoch: int
    exited_height: int
    points: int
    slashed: int


@dataclass(frozen=True, slots=True)
class Members:
    """All 256 seats, used or not. Members are sets of seats (bitmaps) unless stated otherwise.

    - `judged`: number of rounds of the epoch that made a step.
    - `delivered`: for each seat, in how many of them it delivered all that it owed.
    - `proven`: members that delivered a result in the epoch; those that left, only if they
      delivered in half of the rounds. In cooldown, members that may attest their levels.
    - `established`: members that showed their levels in an earlier epoch. They also showed them in
      the last epoch that they began, for as long as they were present.
    - `judges`: the established members that began the epoch. The set does not change until its end.
    - `shown`: for each seat, rounds in which it delivered every level minus rounds in which it did
      not. A newcomer among established members starts at -1. Rounds on which the established
      members disagree do not count.
    - `forfeited`: ejected members whose memberships do not record the ejection yet.
    """

    epoch: int
    judged: int
    delivered: tuple[int, ...]
    proven: int
    shown: tuple[int, ...]
    established: int
    judges: int
    healthy: int
    forfeited: int
    seats: tuple[Seat, ...]

    def find(self, signer: bytes) -> int | None:
        """Return the seat of this wallet, or None if it has none."""
        return next(
            (index for index, seat in enumerate(self.seats) if seat.used and seat.signer == signer),
            None,
        )

    def mask(self, state: MemberState) -> int:
        """Return the bitmap of the used seats in this state."""
        return sum(
            1 << index for index, seat in enumerate(self.seats) if seat.used and seat.state == state
        )

    @property
    def present(self) -> int:
        """Return how many members take part in the running epoch or wait for the next one."""
        return (self.mask(MemberState.HEALTHY) | self.pending).bit_count()

    @property
    def pending(self) -> int:
        """Return the bitmap of the seats that wait for the next epoch."""
        return sum(
            1 << index for index, seat in enumerate(self.seats) if seat.used and seat.pending
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """A run's record of one wallet, which may have a seat.

    `bond` (lamports) will be returned, `forfeited` (lamports) will not. `due` counts the rounds of
    the wallet's epochs, and `delivered` those in which it delivered. While the wallet has a seat,
    the seat's points are newer. `enrolled` is false if the record is only a bar.
    """

    run: bytes
    wallet: bytes
    sponsor: bytes
    created: int
    bond: int
    forfeited: int
    points: int
    slashed: int
    delivered: int
    due: int
    ejections: int
    enrolled: bool
    barred: bool
    version: int
