"""Members that act together against the audits of a run: their false verdicts, and their votes.

A coalition knows the accounts and which of its results are false. It sends nothing itself, so the
members of a simulation and the tests of the program can both act for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aftermath.rules import bitmap
from aftermath.rules.audits import Case, auditable_heights, drawn_results
from aftermath.rules.members import Members
from aftermath.rules.run import RoundId, Run

_DELAY = 0.5
"""Probability that a member postpones a statement until it is asked again."""
_STRAY = 0.05
"""Probability of an extra random statement, which the program usually refuses."""
_Decision = tuple[int, RoundId, int]
"""Seat of the sender, and round and target of the statement."""


class Ballot(StrEnum):
    """How a member of a coalition votes on cases."""

    LIE = "lies"
    """For its own side: it convicts honest members and acquits the coalition's."""
    TRUTH = "votes truly"
    RANDOM = "votes at random"
    SILENT = "does not vote"


@dataclass(frozen=True)
class Habits:
    """How one member of a coalition behaves."""

    cheats: float
    """Probability that its result of a round is false."""
    accuses: float
    """Probability that it accuses an honest member whose result was drawn to it."""
    ballot: Ballot
    leaves: float
    """Probability that it leaves the run, whenever it is asked."""

    @classmethod
    def draw(cls, rng: random.Random) -> Habits:
        return cls(
            cheats=rng.choice((0.0, 0.5, 1.0)),
            accuses=rng.choice((0.0, 1.0, 1.0)),
            ballot=rng.choice(list(Ballot)),
            leaves=rng.choice((0.0, 0.0, 0.02, 0.1)),
        )

    def describe(self) -> str:
        return (
            f"cheats {self.cheats:g}, accuses {self.accuses:g}, {self.ballot}, "
            f"leaves {self.leaves:g}"
        )


@dataclass(frozen=True)
class Statement:
    """A verdict that a member sends with `verify`."""

    seat: int
    at: RoundId
    target: int
    mismatch: bool


def is_minority(chosen: Collection[int], tiers: Mapping[int, int]) -> bool:
    """Return whether fewer than a third of each committee are in `chosen`.

    `tiers` has the tier of each member. A committee has all members of a tier and of lower ones.
    """
    for limit in {tiers[member] for member in chosen}:
        committee = [member for member, tier in tiers.items() if tier <= limit]
        if 3 * sum(member in chosen for member in committee) >= len(committee):
            return False
    return True


def draw_minority(rng: random.Random, tiers: Mapping[int, int]) -> set[int]:
    """Return a random set of members that passes `is_minority`."""
    chosen: set[int] = set()
    most = rng.randint(1, len(tiers))
    for member in rng.sample(sorted(tiers), len(tiers)):
        if len(chosen) < most and is_minority(chosen | {member}, tiers):
            chosen.add(member)
    return chosen


class Coalition:
    """Some seats of a run, and what they say about results of the running epoch."""

    def __init__(
        self,
        rng: random.Random,
        habits: Mapping[int, Habits],
        is_false: Callable[[int, int], bool],
    ) -> None:
        """`habits` has those of each seat. `is_false`: whether the result of a round (height) and a
        seat is false.
        """
        self._rng = rng
        self._is_false = is_false
        self._votes_decided: set[_Decision] = set()
        self._accusations_decided: set[_Decision] = set()
        self.habits = dict(habits)

    def statements(self, run: Run, members: Members, cases: Sequence[Case]) -> list[Statement]:
        """Return what the healthy seats send now. The program may refuse some of it."""
        statements: list[Statement] = []
        for seat in sorted(self.habits):
            if not bitmap.contains(members.healthy, seat):
                continue
            statements += self._accusations(seat, run, members)
            statements += self._votes(seat, run, cases)
            if self._rng.random() < _STRAY:
                statements.append(self._stray(seat, run, members))
        return statements

    def leavers(self, members: Members) -> list[int]:
        """Return the healthy seats that leave now."""
        return [
            seat
            for seat, habits in sorted(self.habits.items())
            if bitmap.contains(members.healthy, seat) and self._rng.random() < habits.leaves
        ]

    def _accusations(self, seat: int, run: Run, members: Members) -> Iterator[Statement]:
        """Yield the false accusations of an auditor. It never accuses a member of the coalition."""
        for height in auditable_heights(run):
            header = run.round(height)
            assert header is not None
            at = RoundId(run.epoch, height, header.seed)
            for target, auditor in drawn_results(run, members, height).items():
                if auditor != seat or target in self.habits:
                    continue
                is_due = self._decides(self._accusations_decided, (seat, at, target))
                if is_due and self._rng.random() < self.habits[seat].accuses:
                    yield Statement(seat, at, target, True)

    def _votes(self, seat: int, run: Run, cases: Sequence[Case]) -> Iterator[Statement]:
        for case in cases:
            at = case.round_id(run.epoch)
            if not case.may_vote(run, seat):
                continue
            if not self._decides(self._votes_decided, (seat, at, case.target)):
                continue
            match self.habits[seat].ballot:
                case Ballot.LIE:
                    yield Statement(seat, at, case.target, case.target not in self.habits)
                case Ballot.TRUTH:
                    is_false = self._is_false(case.height, case.target)
                    yield Statement(seat, at, case.target, is_false)
                case Ballot.RANDOM:
                    yield Statement(seat, at, case.target, self._rng.random() < 0.5)
                case Ballot.SILENT:
                    pass

    def _decides(self, decided: set[_Decision], decision: _Decision) -> bool:
        """Return whether a seat decides on a statement now, for the first time."""
        if decision in decided or self._rng.random() < _DELAY:
            return False
        decided.add(decision)
        return True

    def _stray(self, seat: int, run: Run, members: Members) -> Statement:
        """Return a statement about any stored round and member."""
        header = self._rng.choice(run.rounds)
        used = [index for index, record in enumerate(members.seats) if record.used]
        target = self._rng.choice(used)
        at = RoundId(run.epoch, header.height, header.seed)
        return Statement(seat, at, target, self._rng.random() < 0.5)
