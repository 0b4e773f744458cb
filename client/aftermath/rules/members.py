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
    between epochs it is the most that it can be in the next one (0 for a newcomer). `pending`: it
    wants the next epoch. `removed`: an authority took it out of the queue. `barred`: it may not ask
    again.
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

    - `judged`: how many rounds of the epoch were steps.
    - `delivered`: for each seat, in how many of them it delivered all it owed.
    - `proven`: members that owed something then, or had delivered in half of the rounds when they
      left. In cooldown, members whose attestations of their levels count.
    - `established`: members that showed their levels in an earlier epoch, and in the last epoch
      that they began for as long as they were present.
    - `judges`: the established members with which the epoch began; they stay the same to its end.
    - `shown`: for each seat, rounds in which it delivered every level minus rounds in which it did
      not. A newcomer among established members starts at -1. Rounds on which the established
      members disagree do not count.
    - `forfeited`: ejected members whose memberships do not record it yet.
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
        """Return how many members take part in the running epoch or want the next one."""
        return (self.mask(MemberState.HEALTHY) | self.pending).bit_count()

    @property
    def pending(self) -> int:
        """Return the bitmap of the seats that want the next epoch."""
        return sum(
            1 << index for index, seat in enumerate(self.seats) if seat.used and seat.pending
        )


@dataclass(frozen=True, slots=True)
class Membership:
    """What a run keeps of one wallet, with or without a seat.

    `bond` (lamports) will be returned, `forfeited` (lamports) will not. The wallet `delivered` in
    that many of the `due` rounds of its epochs; while it has a seat, its points there are newer.
    `enrolled` is false if only a bar is kept.
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
