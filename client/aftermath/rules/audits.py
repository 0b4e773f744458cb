"""Audits: which recorded results are replayed, by whom, and who decides about a dispute.

A run with `verification_percent` above 0 draws some results of each round that only established
members witness. Each drawn result has one auditor. It opens a case on chain if its replay differs.
The jury of the result then votes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aftermath.base.bounded import U64_MAX
from aftermath.rules import bitmap, committee
from aftermath.rules.assignment import assign
from aftermath.rules.members import Members
from aftermath.rules.run import Config, Interval, Round, RoundId, Run

AUDIT = b"audit"

MAX_DRAWN = 8
"""Maximum number of drawn results per round, and of open cases per run.

Half are reserved for newcomers' results, half for established members'.
"""

MIN_JURY = 4
"""Minimum size of a jury. A result whose jury is smaller is not drawn.

In a jury of three, the two jurors besides the auditor could convict it.
"""

OPENING_ROUNDS = 2
"""A case may be opened in this number of rounds after the round that recorded the result."""

VOTING_ROUNDS = 4
"""A case may be voted on in the round in which it was opened and in this number of rounds after.

Replays are slow, because jurors also train their own shares.
"""

# SplitMix64, whose state is a hash of the seed.
_STEP = 0x9E3779B97F4A7C15
_FIRST_FACTOR = 0xBF58476D1CE4E5B9
_SECOND_FACTOR = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Case:
    """A disputed result in the account `Witnesses`. Sets of seats are bitmaps.

    `seed` and `height` name the round of the result in the running epoch. `opened` is the height of
    the round in which the auditor opened the case. The votes of the `jury` are in `mismatches` and
    `matches`. `intervals` are the sequences that are trained again if the jury convicts the target.
    """

    seed: int
    height: int
    opened: int
    target: int
    auditor: int
    jury: int
    mismatches: int
    matches: int
    intervals: tuple[Interval, ...]

    def round_id(self, epoch: int) -> RoundId:
        """Return the `RoundId` that votes on this case name."""
        return RoundId(epoch, self.height, self.seed)

    def is_open(self, run: Run) -> bool:
        """Return whether members may still vote on the case. A decided case has no jury."""
        is_in_time = run.current.height <= self.opened + VOTING_ROUNDS
        return run.active and self.jury != 0 and is_in_time

    def may_vote(self, run: Run, seat: int) -> bool:
        """Return whether a healthy member may vote on the case and has not voted yet."""
        voted = self.mismatches | self.matches
        return self.is_open(run) and bitmap.contains(self.jury & ~voted, seat)


def judging_window(config: Config) -> int:
    """Return the number of rounds after its own in which a result can be judged."""
    return config.overlap + OPENING_ROUNDS + VOTING_ROUNDS


def seed_of_draw(run: Run, height: int) -> int | None:
    """Return the seed of the draw among the results of round `height`, or None.

    It is the first seed whose slot the program fixed after the witnesses had recorded these
    results. So nobody knew it before the results were final. None if it is not drawn yet, or if the
    time to open cases is over or the epoch is not audited.
    """
    header = run.round(height)
    if header is None or not run.is_audited or not run.active:
        return None
    rounds_since = run.current.height - run.config.attesting_round(height)
    if rounds_since == 1:
        return run.next_seed if run.seed_is_drawn else None
    return run.current.seed if rounds_since == OPENING_ROUNDS else None


def auditable_heights(run: Run) -> tuple[int, ...]:
    """Return the rounds about whose results cases may be opened now, newest first."""
    newest = run.current.height - run.config.overlap - 1
    oldest = newest - OPENING_ROUNDS + 1
    heights = range(newest, oldest - 1, -1)
    return tuple(height for height in heights if seed_of_draw(run, height) is not None)


def jury(members: Members, target: int) -> int:
    """Return the seats (a bitmap) that decide whether a result of `target` is correct.

    They are the judges of the epoch that hold all levels of the target. Judges that left stay
    jurors. Otherwise a small coalition could become two thirds of the jury as others leave.
    """
    tier = members.seats[target].tier
    judges = bitmap.seats(members.judges)
    holders = (seat for seat in judges if members.seats[seat].tier <= tier)
    return bitmap.from_seats(seat for seat in holders if seat != target)


def can_be_drawn(run: Run, members: Members, target: int) -> bool:
    """Return whether a result of `target` in the running epoch may be drawn."""
    if not run.is_audited:
        return False
    return jury(members, target).bit_count() >= MIN_JURY


def judged_seats(run: Run, members: Members, header: Round, juror: int) -> Iterator[int]:
    """Yield the seats whose results in a round of the running epoch `juror` may judge."""
    for seat in bitmap.seats(header.roster):
        is_drawable = can_be_drawn(run, members, seat)
        if is_drawable and bitmap.contains(jury(members, seat), juror):
            yield seat


def drawn_results(run: Run, members: Members, height: int) -> dict[int, int]:
    """Return {seat of the target: seat of its auditor} for the drawn results of round `height`.

    An established member's recorded result qualifies with a probability of `verification_percent`.
    A newcomer's always qualifies. In each class, the results with the lowest hashes are drawn, at
    most half of `MAX_DRAWN`. Return no results if `seed_of_draw` is None.
    """
    seed = seed_of_draw(run, height)
    header = run.round(height)
    recorder = run.round(run.config.attesting_round(height))
    if seed is None or header is None or recorder is None:
        return {}
    state = committee.purpose_state(seed, AUDIT)
    threshold = run.config.verification_percent << 32
    newcomers: list[tuple[int, int]] = []
    established: list[tuple[int, int]] = []
    for seat, share in assign(header, members).items():
        if not share.len or not bitmap.contains(recorder.attested, seat):
            continue
        if not can_be_drawn(run, members, seat):
            continue
        number = _hash(state, seat)
        if not bitmap.contains(members.judges, seat):
            newcomers.append((number, seat))
        elif (number >> 32) * 100 < threshold:
            established.append((number, seat))
    drawn = sorted(newcomers)[: MAX_DRAWN // 2] + sorted(established)[: MAX_DRAWN // 2]
    auditors = {
        seat: _auditor(jury(members, seat) & header.roster, number) for number, seat in drawn
    }
    return {seat: auditor for seat, auditor in auditors.items() if auditor is not None}


def _auditor(present: int, number: int) -> int | None:
    """Return the juror that the low half of a result's hash selects, or None if none is present."""
    seats = tuple(bitmap.seats(present))
    return seats[(number & 0xFFFFFFFF) * len(seats) >> 32] if seats else None


def _hash(state: int, seat: int) -> int:
    """Return 64 pseudorandom bits of a seat: output `seat` of SplitMix64."""
    number = state + _STEP * (seat + 1) & U64_MAX
    number = (number ^ number >> 30) * _FIRST_FACTOR & U64_MAX
    number = (number ^ number >> 27) * _SECOND_FACTOR & U64_MAX
    return number ^ number >> 31
