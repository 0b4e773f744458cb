"""The records of the oracle: seats, rounds, knowledge of the model, and intervals of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from aftermath.rules import bitmap, committee
from aftermath.rules.run import REDO, Interval
from aftermath.rules.state import MemberState, ModelSource

UNATTESTED = b"\xff" * 32
UNKNOWN = bytes(32)
WAITS = 1
REMOVED = 2
BARRED = 3
NOBODY = -1  # the wallet of a seat whose owner has withdrawn
ROOM = 2 * (REDO + 1)
order = lru_cache(maxsize=4096)(committee.order)


class Refusal(Exception):
    """Raised where the program refuses with this error."""


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Refusal(otherwise)


@dataclass
class Seat:
    """A member's seat."""

    wallet: int
    tier: int = 0
    declared: int = 0
    weight: int = 0
    state: MemberState = MemberState.IDLE
    wish: int = 0
    exited: int = 0
    last_epoch: int = 0
    points: int = 0
    slashed: int = 0
    delivered: int = 0
    shown: int = 0
    """Rounds in which it delivered all its levels, minus those in which it did not."""
    established: bool = False
    """Whether it has shown its levels in an earlier epoch."""
    forfeited: bool = False
    """Whether it was ejected and its membership does not record that yet."""


@dataclass
class OracleMembership:
    """A wallet's membership. Every wallet with a seat has one."""

    bond: int = 0
    forfeited: int = 0
    points: int = 0
    slashed: int = 0
    delivered: int = 0
    due: int = 0
    epoch: tuple[int, int, int] = (0, 0, 0)
    """The last counted epoch, and its deliveries and rounds that are already counted above."""
    ejections: int = 0
    own: bool = True
    """Whether the wallet paid for it. Otherwise an authority that bars the wallet did."""
    enrolled: bool = False
    barred: bool = False


@dataclass
class Vote:
    """A witness's attestation: the result of each member, by seat."""

    seat: int
    held: Mapping[int, int]


@dataclass
class OracleRound:
    """A round, or the warm-up before the first one."""

    height: int
    step: int
    began: int
    roster: int
    elected: int
    established: bool = False
    """Whether only established members witness the round."""
    trained_alone: bool = False
    """Whether only established members have shares."""
    seed: int | None = None
    batch: tuple[Interval, ...] = ()
    data_index: int = 0
    votes: list[Vote] = field(default_factory=list)
    ready: int = 0
    attested: int | None = None
    """The members that delivered in the round that this one judges, once it is closed."""
    counts: bool = False
    """Whether it made a step and its levels are not counted yet."""

    @property
    def members(self) -> list[int]:
        return list(bitmap.seats(self.roster))

    @property
    def size(self) -> int:
        return sum(piece.len for piece in self.batch)

    @property
    def voters(self) -> int:
        return self.ready | bitmap.from_seats(vote.seat for vote in self.votes)

    def ordered(self, purpose: bytes, among: int | None = None) -> list[int]:
        """Return the seats of the members that began the epoch, or these seats, in the seeded order
        of a purpose.
        """
        seats = list(bitmap.seats(self.began if among is None else among))
        assert self.seed is not None
        return [seats[rank] for rank in order(self.seed, purpose, len(seats))]

    def of_round(self, purpose: bytes) -> list[int]:
        """Return the seats of the round's members, in the seeded order of a purpose."""
        return [seat for seat in self.ordered(purpose) if bitmap.contains(self.roster, seat)]


@dataclass
class OracleCase:
    """A disputed result. `votes` has each juror's finding: whether the result is wrong.

    A decided case has no jury.
    """

    round: OracleRound
    opened: int
    target: int
    auditor: int
    jury: list[int]
    sequences: list[Interval]
    votes: dict[int, bool] = field(default_factory=dict)

    def against(self, mismatch: bool) -> int:
        """Return the bitmap of the jurors that voted so."""
        return bitmap.from_seats(seat for seat, vote in self.votes.items() if vote is mismatch)


@dataclass(frozen=True)
class Knowledge:
    """The run's knowledge of its model."""

    hashes: tuple[bytes, ...]
    attested: int
    step: int
    data_index: int
    source: ModelSource
    lost: int


@dataclass(frozen=True)
class NamedCheckpoint:
    """A recorded durable checkpoint."""

    hashes: tuple[bytes, ...]
    step: int
    data_index: int
    turn: int = 0


def numbers(intervals: Iterable[Interval]) -> set[int]:
    return {number for one in intervals for number in range(one.start, one.stop)}


def runs_of(numbers: Iterable[int]) -> list[Interval]:
    """Return the intervals that a set of numbers consists of."""
    runs: list[Interval] = []
    for number in sorted(numbers):
        if runs and runs[-1].stop == number:
            runs[-1] = Interval(runs[-1].start, runs[-1].len + 1)
        else:
            runs.append(Interval(number, 1))
    return runs


def behind(batch: Iterable[Interval], places: set[int]) -> list[Interval]:
    """Return the sequences at these positions of a batch, as intervals of its pieces."""
    intervals = []
    first = 0
    for piece in batch:
        here = {
            piece.start + place - first for place in places if first <= place < first + piece.len
        }
        intervals += runs_of(here)
        first += piece.len
    return intervals
