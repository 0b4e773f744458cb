"""Record what happens on chain, and check the invariants of every run.

Uses only the accounts and the rules. Records the sequences that each round settled, the void
results, and the dropped members.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from aftermath.rules import bitmap
from aftermath.rules.assignment import assign, sequences
from aftermath.rules.audits import Case
from aftermath.rules.members import Members
from aftermath.rules.run import BACKLOG, REDO, Interval, Run
from aftermath.rules.state import MemberState, RunState

Ranges = list[list[int]]

ROOM = 2 * (REDO + 1)
"""Intervals of the backlog that stay free for the two rounds in progress."""


def _ejected(members: Members) -> int:
    # A vote in cooldown can also end the epoch, which returns all members to idle.
    return members.mask(MemberState.EJECTED) | members.forfeited


def _pushed_out(members: Members) -> int:
    return members.mask(MemberState.DROPPED) | _ejected(members)


def _is_convicted(case: Case, members: Members) -> bool:
    """Return whether a decided case ejected its target. `case` may lack its last votes."""
    ejected = _ejected(members)
    if not bitmap.contains(ejected, case.target) or not bitmap.contains(ejected, case.auditor):
        return bitmap.contains(ejected, case.target)
    # Another case ejected one of them.
    return case.mismatches.bit_count() > case.matches.bit_count()


class InvariantBroken(AssertionError):
    """Raised if an invariant does not hold."""


def state_of(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a label of the replica state that an event's hashes describe.

    A round that made no step has the label of a later round.
    """
    return event["kind"], event["step"], event["epoch"], event.get("height")


@dataclass
class ChainRecord:
    """The history of the run, updated after every transaction."""

    settled: dict[tuple[int, int], Ranges] = field(default_factory=dict)
    """(epoch, height): the sequences whose results were attested, as [start, stop), in seat
    order.
    """
    steps: dict[tuple[int, int], int] = field(default_factory=dict)
    """(epoch, height): the step of every settled round that had data."""
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, seat) of every member that was dropped or ejected."""
    ejected: list[tuple[int, int]] = field(default_factory=list)
    """(epoch, seat) of every member that was ejected."""
    void: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    """(epoch, height): the sequences of convicted results that returned to the backlog."""
    again: dict[tuple[int, int], int] = field(default_factory=dict)
    """(epoch, height) of a round after which the run went back: the first sequence that is assigned
    again.
    """
    _before: tuple[Run, Members] | None = None
    _cases: Collection[Case] = ()
    _used_backlog: int = 0
    """Number of intervals in the backlog."""

    def note(
        self,
        run: Run,
        members: Members,
        cases: Collection[Case] = (),
        backlog: Collection[Interval] = (),
    ) -> None:
        """Record the accounts after a transaction. `cases` and `backlog` are those of the account
        `Witnesses`.
        """
        if self._before is not None:
            old, old_members = self._before
            self._note_convictions(old, members, cases)
            if old.state.training and (
                run.state is RunState.COOLDOWN or run.current.height != old.current.height
            ):
                self._close(run, old.current.height, old_members)
            for seat in bitmap.seats(_pushed_out(members) & ~_pushed_out(old_members)):
                self.dropped.append((old.epoch, seat))
            for seat in bitmap.seats(_ejected(members) & ~_ejected(old_members)):
                self.ejected.append((old.epoch, seat))
            if run.step < old.step:  # The chain undid an epoch, or the owner rewound the run.
                index = run.data_index
                self.again = {key: min(index, self.again.get(key, index)) for key in self.settled}
        self._before = run, members
        self._cases = cases
        self._used_backlog = len(backlog)

    def _note_convictions(self, old: Run, members: Members, cases: Collection[Case]) -> None:
        """Record the void sequences of each case that a jury decided against its target.

        The program puts them back into the backlog before it makes a transition.
        """
        left = {(case.height, case.seed, case.target) for case in cases if case.jury}
        for case in self._cases:
            is_decided = (case.height, case.seed, case.target) not in left and case.is_open(old)
            if not is_decided or not _is_convicted(case, members):
                continue
            if self._used_backlog + len(case.intervals) + ROOM <= BACKLOG:
                void = self.void.setdefault((old.epoch, case.height), set())
                for one in case.intervals:
                    void.update(range(one.start, one.stop))

    def _close(self, run: Run, height: int, members: Members) -> None:
        """Record that round `height` closed, which settles the round that it judges."""
        closed = run.round(height)
        round_ = run.round(run.config.judged(height))
        if closed is None or round_ is None or not round_.batch:
            return
        shares = assign(round_, members)
        done = (
            seat
            for seat in sorted(shares)
            if shares[seat].len and bitmap.contains(closed.attested, seat)
        )
        key = run.epoch, round_.height
        self.settled[key] = [
            [r.start, r.stop] for seat in done for r in sequences(round_, shares[seat])
        ]
        self.steps[key] = round_.step

    def check_coverage(self, backlog: Iterable[Interval]) -> None:
        """Check between epochs that every assigned sequence was trained once or is in the backlog.

        After a rewind, earlier training of reassigned sequences does not count. Void results do not
        count either.
        """
        assert self._before is not None
        run, _ = self._before
        trained = [
            (start, min(stop, self.again.get(key, stop)))
            for key in self.settled
            for start, stop in self._valid(key)
            if start < self.again.get(key, stop)
        ]
        waiting = [(interval.start, interval.stop) for interval in backlog]
        spans = sorted(trained + waiting)
        for (_, stop), (start, _) in pairwise(spans):
            if start < stop:
                raise InvariantBroken(
                    f"sequence {start} was trained twice, or is trained and waits too"
                )
        covered = sum(stop - start for start, stop in spans)
        if covered != run.data_index or run.lost_sequences:
            raise InvariantBroken(
                f"{run.data_index} sequences were handed out, {covered} found, {run.lost_sequences} lost"
            )

    def _valid(self, key: tuple[int, int]) -> Ranges:
        """Return the sequences that a round settled without those of void results."""
        void = self.void.get(key)
        if not void:
            return self.settled[key]
        trained = [index for start, stop in self.settled[key] for index in range(start, stop)]
        if not void <= set(trained):
            raise InvariantBroken(f"void sequences that round {key} did not train: {void}")
        return [[index, index + 1] for index in trained if index not in void]

    def check_member(
        self, name: str, applied: Iterable[tuple[int, int, int, Ranges]], ended: Iterable[int]
    ) -> None:
        """Check what a member applied. `applied` has (epoch, height, step, sequences) in order, and
        `ended` the epochs whose rounds the member finished.
        """
        heights: dict[int, list[int]] = {}
        for epoch, height, step, ranges in applied:
            if self.steps.get((epoch, height)) != step:
                raise InvariantBroken(
                    f"{name} applied round {height} of epoch {epoch} as step {step}"
                )
            if ranges != self.settled[epoch, height]:
                raise InvariantBroken(
                    f"{name} applied {ranges} in round {height}, attested were {self.settled[epoch, height]}"
                )
            heights.setdefault(epoch, []).append(height)
        for epoch, rounds in heights.items():
            if rounds != list(range(len(rounds))):
                raise InvariantBroken(f"{name} applied rounds {rounds} of epoch {epoch}")
        for epoch in ended:
            rounds = sorted(height for one, height in self.steps if one == epoch)
            if heights.get(epoch, []) != rounds:
                raise InvariantBroken(
                    f"{name} ended epoch {epoch} with {heights.get(epoch, [])} applied, of {rounds}"
                )
