"""What the accounts `Members` and `Membership` hold, as frozen dataclasses with the program's field names; forms are as
in `run`.
"""

from __future__ import annotations

from dataclasses import dataclass

from aftermath.rules.state import MemberState


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place. `declared` is its speed in sequences per minute, `weight` what its share is measured by in the
    running epoch (between epochs, the most that it may be in the next; 0 of a newcomer). `pending`: it wants the next
    epoch; `removed`: an authority has taken it out of the line; `barred`: it may not ask again.
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
    """All 256 seats, used or not. `judged` counts the rounds of the epoch that were steps, `delivered` for each seat
    in how many of them it delivered all it owed; `proven` are those who owed something then, or had delivered in half
    of the rounds when they left, and in cooldown those whose word counts about their levels; `established` those who
    have shown in an epoch before that they hold their levels, and in the last one that they began for as long as they
    were there; `judges` those of them with whom the epoch began, the same to its end; `shown` says for each seat in how
    many more rounds it delivered every level than it did not (a newcomer to established members begins one below 0;
    what divides the established ones counts for nobody); `forfeited` are those who were ejected and whose memberships
    do not say so yet.
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
        """The seat of this wallet, or None when it never joined (or its seat was given away)."""
        return next((index for index, seat in enumerate(self.seats) if seat.used and seat.signer == signer), None)

    def mask(self, state: MemberState) -> int:
        """The bitmap of the used seats in this state."""
        return sum(1 << index for index, seat in enumerate(self.seats) if seat.used and seat.state == state)

    @property
    def present(self) -> int:
        """How many members take part in the running epoch or want the next one."""
        return (self.mask(MemberState.HEALTHY) | self.pending).bit_count()

    @property
    def pending(self) -> int:
        """The bitmap of the seats that want the next epoch."""
        return sum(1 << index for index, seat in enumerate(self.seats) if seat.used and seat.pending)


@dataclass(frozen=True, slots=True)
class Membership:
    """What a run keeps of one wallet, with or without a seat. Amounts in lamports: the `bond` that comes back, and what
    is `forfeited`. `delivered` of the `due` rounds of the epochs that it began; while it has a seat, its points there
    are newer. `enrolled` is false where only a bar is kept.
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
