"""The coordinator's state machine, written a second time (`oracle.py` has the rest).

It expresses the program's rules in other words and shares no code with it. Tests give it the seeds.
It supports no run whose seats are all taken and no change of the model by the owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import reduce
from operator import or_

from aftermath.rules import assignment, bitmap, committee
from aftermath.rules.committee import quorum
from aftermath.rules.run import (
    BACKLOG,
    MAX_WITNESSES,
    REDO,
    STORED_ROUNDS,
    Config,
    Interval,
    RoundId,
)
from aftermath.rules.state import ExitReason, MemberState, ModelSource, RunState
from programs.oracle_records import (
    BARRED,
    NOBODY,
    REMOVED,
    ROOM,
    UNATTESTED,
    UNKNOWN,
    WAITS,
    Knowledge,
    NamedCheckpoint,
    OracleCase,
    OracleMembership,
    OracleRound,
    Seat,
    Vote,
    behind,
    numbers,
    require,
    runs_of,
)
from rules.program_rules import leading

OFTEN = 8
"""Failures minus deliveries after which a member is dropped for its levels."""
ABSENT = 2
"""Failures that a level's only holder may have without losing its vote."""
EARLIER_CHECKPOINTS = 3
"""Checkpoints that a run remembers before its durable one."""
MEDIANS = 8
"""Maximum weight of a member, in multiples of the median weight."""
DAY = 24 * 60 * 60
MONTH = 30 * DAY


def round_quorum(round: OracleRound, elected: int) -> int:
    """Return a round's quorum: at least two witnesses where only established ones witness."""
    return max(quorum(elected), 2 if round.established else 1)


def splitmix(state: int) -> Iterator[int]:
    """Yield the numbers of a SplitMix64 generator."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        yield mixed ^ (mixed >> 31)


class Transitions:
    """A started run with `levels` levels, and a first checkpoint without known hashes."""

    def __init__(
        self, config: Config, levels: int, now: int, rates: tuple[int, int] = (0, 0)
    ) -> None:
        self.config = config
        self.levels = levels
        self.now = now
        self.rates = rates
        self.every = (1 << levels) - 1
        self.state = RunState.WAITING_FOR_MEMBERS
        self.since = now
        self.waiting_since = now
        self.epoch = 0
        self.step = 1
        self.start_step = 0
        self.epoch_since = 0
        self.data_index = 0
        self.backlog: set[int] = set()
        self.trained: set[int] = set()
        self.members: list[Seat] = []
        self.memberships: dict[int, OracleMembership] = {}
        self.rostered = 0
        """The epoch of the last roster."""
        self.rounds: list[OracleRound] = []
        self.judged = self.began = self.next_roster = self.proven = 0
        self.known_levels = 0
        """Levels that established holders had at the epoch's start."""
        self.judges = 0
        """Members that began the epoch and had shown their levels before, in any present state."""
        self.slot = 0
        self.seed_slot = 0
        """The slot for which the next seed waits, or 0."""
        self.next_seed = 0
        self.cases: list[OracleCase] = []
        self.pausing = False
        self.draining = 0
        self.cold = True
        self.reason = ExitReason.NONE
        self.finishers = 0
        self.known = Knowledge((UNKNOWN,) * levels, 0, 0, 0, ModelSource.CHECKPOINT, 0)
        self.durable = NamedCheckpoint((UNKNOWN,) * levels, 0, 0)
        self.earlier: list[NamedCheckpoint | None] = [None] * EARLIER_CHECKPOINTS
        """The checkpoints before it, newest first."""
        self.kept: tuple[Knowledge, int] | None = None
        """Knowledge of the model and the first untrained sequence, restored if the epoch is undone.
        None once the epoch stands.
        """
        self.statements: dict[int, dict[int, bytes]] = {}
        """The attested hashes of each level, by seat."""

    # --- questions

    @property
    def round(self) -> OracleRound:
        return self.rounds[-1]

    @property
    def halted(self) -> bool:
        return self.state in (RunState.FINISHED, RunState.PAUSED)

    @property
    def healthy(self) -> int:
        return self._seats(MemberState.HEALTHY)

    @property
    def waiting(self) -> int:
        return sum(1 << number for number, seat in enumerate(self.members) if seat.wish == WAITS)

    def _seats(self, state: MemberState) -> int:
        return sum(1 << number for number, seat in enumerate(self.members) if seat.state is state)

    def find(self, wallet: int) -> int | None:
        return next(
            (number for number, seat in enumerate(self.members) if seat.wallet == wallet), None
        )

    def intervals(self) -> list[Interval]:
        """Return the backlog as intervals that do not touch."""
        return runs_of(self.backlog)

    def judged_by(self, round: OracleRound) -> OracleRound | None:
        """Return the round whose results the witnesses of this round attest."""
        height = round.height - self.config.overlap
        return next((one for one in self.rounds if one.height == height), None)

    def _past(self, back: int) -> OracleRound | None:
        """Return the round `back` rounds before this one, as long as it is stored."""
        return self.rounds[-1 - back] if back < min(len(self.rounds), STORED_ROUNDS) else None

    def is_round(self, at: RoundId, back: int) -> bool:
        """Return whether `at` identifies the round `back` rounds before this one."""
        past = self._past(back)
        if past is None:  # the warm-up before round 0
            return not self.rounds and not back and at == RoundId(self.epoch, 0, 0)
        return at == RoundId(self.epoch, past.height, past.seed or 0)

    def _passed(self, since: int, seconds: int) -> bool:
        return self.now > since and self.now >= since + seconds

    def _require_own_seat(self, number: int, wallet: int) -> None:
        """Refuse a wallet that does not have this seat, or whose member is not healthy."""
        own = number < len(self.members) and self.members[number].wallet == wallet
        require(own and self.members[number].state is MemberState.HEALTHY, "SeatMismatch")

    def _held(self, seats: int) -> int:
        """Return the levels that any of these members holds."""
        tiers = [self.members[number].tier for number in bitmap.seats(seats)]
        return self.every & ~((1 << min(tiers)) - 1) if tiers else 0

    def _beyond_checkpoint(self) -> int:
        pairs = enumerate(zip(self.known.hashes, self.durable.hashes, strict=True))
        return sum(1 << level for level, (newest, durable) in pairs if newest != durable)

    def _unsaved(self) -> int:
        """Return the levels that would be lost without their holders."""
        return self._beyond_checkpoint() & self.known.attested

    @property
    def first_untrained(self) -> int:
        return min([*self.backlog, self.data_index])

    def witnesses(self) -> set[int]:
        """Return the members that may witness the running round.

        They are the first in the seeded order that have voted, or still can.
        """
        round = self.round
        seated = self.round.roster & (self.round.voters | self.healthy)
        if round.elected >= len(round.members):
            return set(round.members)
        ordered = round.ordered(committee.WITNESS, self._electors())
        return set(
            [number for number in ordered if bitmap.contains(seated, number)][: round.elected]
        )

    def _enough(self) -> bool:
        """Return whether only established members witness: three begin the epoch and hold all
        levels.
        """
        return self.judges.bit_count() >= 3 and self.known_levels == self.every

    def _electors(self) -> int:
        return self.judges if self.round.established else self.began

    def shares(self, round: OracleRound) -> dict[int, range]:
        """Return the positions of the batch that each member trains."""
        ordered = round.of_round(committee.DATA)
        trains = self.judges if round.trained_alone else self.began
        idle = {number for number in ordered if not bitmap.contains(trains, number)}
        weights = [0 if number in idle else self.members[number].weight for number in ordered]
        cut = assignment.cut(round.size, weights)
        return {
            number: range(share.start, share.stop)
            for number, share in zip(ordered, cut, strict=True)
        }

    def audits(self, round: OracleRound) -> dict[int, tuple[int, list[int]]] | None:
        """Return the auditor and the jury of each drawn result of a round.

        None if no case about its results may be opened now.
        """
        recorder = self._past(self.round.height - round.height - self.config.overlap)
        rounds_since = self.round.height - (recorder or self.round).height
        seeds = {1: None if self.seed_slot else self.next_seed, 2: self.round.seed}
        seed = seeds.get(rounds_since) if self.config.verification_percent else None
        if (
            seed is None
            or recorder is None
            or not round.established
            or recorder.height != round.height + self.config.overlap
        ):
            return None
        drawn: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        numbers_of_seats = splitmix(committee.purpose_state(seed, b"audit"))
        for number, random in zip(range(bitmap.MAX_MEMBERS), numbers_of_seats, strict=False):
            if not bitmap.contains(recorder.attested or 0, number):
                continue
            newcomer = not bitmap.contains(self.judges, number)
            chosen = newcomer or 100 * (random >> 32) < self.config.verification_percent << 32
            jury = self._jury_of(number)
            if chosen and len(jury) >= 4 and self.shares(round).get(number):
                drawn[newcomer].append((random, number))
        audits = {}
        for random, number in sorted(drawn[False])[:4] + sorted(drawn[True])[:4]:
            jury = self._jury_of(number)
            present = [one for one in jury if bitmap.contains(round.roster, one)]
            if present:
                audits[number] = present[random % 2**32 * len(present) >> 32], jury
        return audits

    def _jury_of(self, target: int) -> list[int]:
        tier = self.members[target].tier
        among = bitmap.seats(self.judges)
        return [one for one in among if one != target and self.members[one].tier <= tier]

    def is_audited(self) -> bool:
        """Return whether results of the epoch are audited."""
        return bool(self.config.verification_percent and self.round.established)

    def kept_cases(self) -> list[OracleCase]:
        """Return the cases that may be voted on, and decided ones about results that may still be
        disputed.
        """
        return [
            one for one in self.cases if self.round.height <= one.opened + (4 if one.jury else 1)
        ]

    def open_cases(self) -> list[OracleCase]:
        """Return the cases that may be voted on."""
        return [one for one in self.kept_cases() if one.jury]

    def electees(self, level: int) -> list[int]:
        """Return the committee of a level: holders that have shown it, now or before, present or
        not.
        """

        def stayed(seat: Seat) -> bool:
            return seat.state is MemberState.HEALTHY or seat.exited > self.round.height

        delivering_judges = [self.members[one] for one in bitmap.seats(self.judges & self.proven)]
        judge_stayed = any(seat.tier <= level and stayed(seat) for seat in delivering_judges)

        if not judge_stayed and any(seat.tier <= level for seat in self._missing()):
            return []

        def counts(number: int) -> bool:
            if judge_stayed and not bitmap.contains(self.judges, number):
                return False  # a newcomer
            seat = self.members[number]
            stayed = seat.state is MemberState.HEALTHY or seat.exited
            return (
                bool((seat.established and stayed) or bitmap.contains(self.proven, number))
                and seat.tier <= level
            )

        return [number for number in self.round.ordered(committee.COOLDOWN) if counts(number)][
            :MAX_WITNESSES
        ]

    def _missing(self) -> list[Seat]:
        """Return the established members that were dropped, restarted, or left out of this epoch.

        Empty with fewer than three.
        """
        if self._established().bit_count() < 3 or not self.judges:
            return []
        gone = self.judges & (self._seats(MemberState.DROPPED) | self._seats(MemberState.RESTARTED))
        absent = self._established() & ~self.began
        recent = [
            one for one in bitmap.seats(absent) if self.members[one].last_epoch + 1 >= self.epoch
        ]
        return [self.members[one] for one in (*bitmap.seats(gone), *recent)]

    def _delivered_half(self, seat: Seat) -> bool:
        """Return whether a member delivered in half of the rounds, with a score of 0 or more."""
        return 2 * seat.delivered >= self.judged and seat.shown >= 0

    def judge(self) -> None:
        """Count which members delivered all their levels in the last closed round, as the levels'
        judges recorded.
        """
        round = self._past(1)
        judged = self.judged_by(round) if round else None
        if round is None or judged is None or not round.counts:
            return
        agreed = self._agreed(round) if round.established else self._by_most(round)
        by_all = self._fetched_by_all(round)
        for number in judged.members:
            seat = self.members[number]
            result = leading(vote.held.get(number) for vote in round.votes)
            missing = number not in agreed and not bitmap.contains(round.attested or 0, number)
            if missing and seat.state is not MemberState.HEALTHY and seat.exited <= judged.height:
                continue  # it had left before it owed this result
            own = [level for level in range(seat.tier, self.levels) if level not in by_all]
            recorded = [self._level_votes(round, number, result, level) for level in own]
            if self.known_levels:  # skip levels without established holders on which nobody voted
                known = [self.known_levels >> level & 1 for level in own]
                pairs = zip(recorded, known, strict=True)
                recorded = [one for one, counts in pairs if one[0] or counts]
            owed = missing or number in agreed
            whole = all(votes for votes, _, _ in recorded)
            if not owed or seat.shown == -64:
                continue
            if (
                whole
                and number in agreed
                and all(votes.count(True) >= needed for votes, needed, _ in recorded)
            ):
                seat.shown = min(63, seat.shown + 1)
            elif result is None:
                seat.shown -= whole and self._left_out(round, number)
            elif not (round.established or number in agreed):
                continue
            elif any(votes and votes.count(False) >= needed for votes, _, needed in recorded):
                seat.shown -= 1

    def _fetched_by_all(self, round: OracleRound) -> set[int]:
        """Return the levels without established holders that all witnesses have.

        For each, some declared holders are not drawn if nobody leaves, and fewer than sixteen are
        drawn.
        """
        ordered = [
            seat
            for seat in round.ordered(committee.WITNESS, self.began)
            if bitmap.contains(round.roster, seat)
        ]
        drawn = ordered[: self.config.witness_nodes or MAX_WITNESSES]
        new = [level for level in range(self.levels - 1) if not self.known_levels >> level & 1]

        def holders(seats: Iterable[int], level: int) -> int:
            return sum(self.members[seat].tier <= level for seat in seats)

        return {
            level for level in new if holders(drawn, level) < min(16, holders(round.members, level))
        }

    def _level_votes(
        self, round: OracleRound, number: int, result: int | None, level: int
    ) -> tuple[list[bool], int, int]:
        """Return which attesting judges of a level recorded that result of a seat.

        The two numbers after it are how many must record it, and how many must deny it.
        """
        known = bool(self.known_levels >> level & 1)
        level_votes = [
            vote for vote in round.votes if not known or bitmap.contains(self.judges, vote.seat)
        ]
        level_votes = [vote for vote in level_votes if self.members[vote.seat].tier <= level]
        votes = [vote.held.get(number) == result for vote in level_votes]
        may = not known or bitmap.contains(self.judges, number)  # an accused judge votes for itself
        others = len(votes) + (may and number not in [vote.seat for vote in level_votes])
        needed = self._decides(round, level, len(votes))
        if known and not round.established and level == self.levels - 1 and len(votes) == 2:
            needed = 1  # a majority of all witnesses has recorded the leading result
        return votes, needed, self._decides(round, level, others)

    def _decides(self, round: OracleRound, level: int, count: int) -> int:
        """Return how many votes decide. For a level that nobody has shown, absent witnesses that
        may hold it count.
        """
        if self.known_levels >> level & 1:
            return quorum(count)
        silent_holders = sum(
            not bitmap.contains(round.voters, one) and self.members[one].tier <= level
            for one in round.members
        )
        return (count + min(round.elected - len(round.votes), silent_holders)) // 2 + 1

    def _remaining(self, round: OracleRound) -> list[Vote]:
        return [
            vote for vote in round.votes if self.members[vote.seat].state is MemberState.HEALTHY
        ]

    def absent(self, judges: OracleRound, judged: OracleRound) -> int:
        """Return the members that owed a result and that a quorum of the round's witnesses did
        without.
        """
        votes = self._remaining(judges)
        return bitmap.from_seats(
            one
            for one in bitmap.seats(judged.roster & ~(judges.attested or 0))
            if sum(one not in vote.held for vote in votes)
            >= round_quorum(judges, self._jury(judges))
        )

    def _jury(self, judges: OracleRound) -> int:
        """Return the number of witnesses whose quorum drops a member."""
        if not self.config.witness_nodes:
            return judges.elected
        established = judges.roster & self.judges
        jury = established if judges.established and established & self.healthy else judges.roster
        return max(judges.elected, min(jury.bit_count(), MAX_WITNESSES))

    def incomplete(self, judges: OracleRound, judged: OracleRound) -> int:
        """Return the members that often, and now again, delivered incomplete levels.

        Only members that have shown those levels decide this.
        """
        votes = self._remaining(judges)
        needed = round_quorum(judges, judges.elected)

        def owed(number: int) -> bool:
            recorded = sum(number in vote.held for vote in judges.votes) >= needed
            return recorded or not bitmap.contains(judges.attested or 0, number)

        return bitmap.from_seats(
            number
            for number in judged.members
            if self.members[number].shown <= -OFTEN
            and len(votes) >= needed
            and owed(number)
            and any(
                self._lacks(votes, number, level)
                for level in range(self.members[number].tier, self.levels)
            )
        )

    def _lacks(self, votes: list[Vote], number: int, level: int) -> bool:
        """Return whether a quorum of a level's established holders lacks it.

        An accused holder votes for itself.
        """
        holders = {one for one in bitmap.seats(self.began) if self.members[one].established}
        holders = {one for one in holders if self.members[one].tier <= level}
        judges = {vote.seat: number in vote.held for vote in votes if vote.seat in holders}
        if number in holders:
            judges.setdefault(number, True)  # a silent accused holder votes for itself
        lacking = list(judges.values()).count(False)
        return lacking >= max(quorum(len(judges)), min(2, len(holders)))

    def counts(self, number: int) -> bool:
        """Return whether this seat's level score counts: it began the epoch, even if it has left
        since.
        """
        return self.state.active and bitmap.contains(self.began, number)

    def level_status(self, number: int) -> tuple[int, ...]:
        """Return whether a seat is established, judges and is proven, and in an epoch its level
        score.
        """
        established = self.members[number].established
        judges = bitmap.contains(self.judges, number)
        proven = bitmap.contains(self.proven, number)
        score = self.members[number].shown if self.counts(number) else 0
        return established, judges, proven, score

    def has_attested(self, number: int) -> bool:
        """Return whether a seat has attested a level in this cooldown."""
        return any(number in hashes for hashes in self.statements.values())

    # --- members

    def _claim(self, wallet: int) -> int:
        number = self.find(wallet)
        if number is None:
            number = self.find(NOBODY)
            membership = self.memberships[wallet]
            seat = Seat(wallet, points=membership.points, slashed=membership.slashed)
            if number is None:
                number = len(self.members)
                self.members.append(seat)
            self.members[number] = seat
            self.finishers &= ~(1 << number)
        return number

    def _settle_seat(self, seat: Seat, membership: OracleMembership) -> None:
        """Copy what the seat says into its membership. Count a lost bond as forfeited."""
        membership.points = seat.points
        membership.slashed = seat.slashed
        began = bitmap.contains(self.began, self.members.index(seat))
        if began and seat.weight and seat.last_epoch == self.rostered:
            _, delivered, due = (
                membership.epoch if membership.epoch[0] == self.rostered else (0, 0, 0)
            )
            membership.delivered += max(0, seat.delivered - delivered)
            membership.due += max(0, self.judged - due)
            membership.epoch = self.rostered, seat.delivered, self.judged
        if seat.forfeited:
            seat.forfeited = False
            membership.forfeited, membership.bond = membership.forfeited + membership.bond, 0
            membership.ejections += 1

    def _withdraw(self, seat: Seat, *, restarted: bool = False) -> None:
        if seat.state is MemberState.HEALTHY and restarted and self.state.training:
            self._exit(seat, MemberState.RESTARTED)
        elif seat.state is MemberState.HEALTHY:
            self._exit(
                seat,
                MemberState.LEFT_EARLY if self.state is RunState.WARMUP else MemberState.WITHDRAWN,
            )

    def _exit(self, seat: Seat, state: MemberState) -> None:
        if self.state is not RunState.COOLDOWN:
            enough = state is not MemberState.EJECTED and self._delivered_half(seat)
            seat.established &= state is not MemberState.EJECTED
            self.proven &= ~(0 if enough else 1 << self._claim(seat.wallet))
        seat.state = state
        seat.exited = (self.round.height if self.rounds else 0) + (self.state is RunState.COOLDOWN)

    def _eject(self, seat: Seat) -> None:
        if seat.state in (MemberState.IDLE, MemberState.EJECTED):
            return
        exited = seat.exited
        was_healthy = seat.state is MemberState.HEALTHY
        self._exit(seat, MemberState.EJECTED)
        if not was_healthy:
            seat.exited = exited
        seat.forfeited = True
        if seat.wish == WAITS:
            seat.wish = 0
        self._reelect()

    def _reelect(self) -> None:
        if self.state in (RunState.WARMUP, RunState.ROUND_TRAIN, RunState.ROUND_WITNESS):
            seated = self.round.roster & (self.round.voters | self.healthy)
            self.round.elected = min(self.round.elected, (seated & self._electors()).bit_count())

    # --- transitions

    def _enter(self, state: RunState) -> None:
        self.state = state
        self.since = self.now
        self.waiting_since = self.now

    def _follow(self) -> None:
        if self.state is not RunState.COOLDOWN:
            self._tick()
        elif self._safe():
            self._end_epoch()

    def _tick(self) -> bool:
        drawn = self._draw()
        return self._transition() or drawn

    def _fix(self) -> None:
        """Fix the slot of the next seed: the first of the next four."""
        self.seed_slot = self.slot // 4 * 4 + 4

    def _draw(self) -> bool:
        running = self.state is RunState.WARMUP or self.state.training
        if not running or not 0 < self.seed_slot < self.slot:
            return False
        self.seed_slot = 0
        if self.state is RunState.WARMUP:
            self.round.seed = None  # until now it had only a name
        return True

    def _transition(self) -> bool:
        match self.state:
            case RunState.WAITING_FOR_MEMBERS:
                return self._tick_waiting()
            case RunState.WARMUP:
                return self._tick_warmup()
            case RunState.ROUND_TRAIN | RunState.ROUND_WITNESS:
                return self._tick_round()
            case RunState.COOLDOWN:
                return self._tick_cooldown()
        return False

    def _tick_waiting(self) -> bool:
        extra = self.config.waiting_for_members_extra_time
        awaits_a_day = False
        waiting = self.waiting
        if self.known.source is ModelSource.PEERS:
            finishers = self._trusted_finishers()
            here = self._held(finishers & waiting)
            away = self._held(finishers) & ~here & self._unsaved()
            extra += self.config.warmup_time if away else 0
            if away and not here:
                if not waiting & (self._established() | self.finishers):
                    return False
                awaits_a_day = True
        if self._newcomers_alone(waiting):
            awaits_a_day |= bool(self.epoch_since)
            rewound = self.config.waiting_for_members_extra_time + self.config.warmup_time
            extra = max(extra, 0 if self.epoch_since else rewound)
        if (
            not self._passed(self.since, extra)
            or (awaits_a_day and not self._passed(self.waiting_since, DAY))
            or waiting.bit_count() < self.config.init_min_clients
        ):
            return False
        self._begin(waiting)
        return True

    def _newcomers_alone(self, waiting: int) -> bool:
        """Return whether no established member waits, or only one or two whose epoch was undone,
        while another may come.
        """
        known = self._established()
        here = waiting & known
        absent = bitmap.seats(known & ~here)
        may_come = any(self.members[number].wish < REMOVED for number in absent)
        return may_come and here.bit_count() < 3 and not here & ~self._undone()

    def _undone(self) -> int:
        """Return the established members of the last epoch, if its steps were undone."""
        undone = self.epoch_since and self.judged and self.step == self.start_step
        return self.judges & self._established() if undone else 0

    def _established(self) -> int:
        return bitmap.from_seats(
            number for number, seat in enumerate(self.members) if seat.established
        )

    def _trusted_finishers(self) -> int:
        """Return the established finishers, or all finishers if none is established."""
        return self.finishers & self._established() or self.finishers

    def _begin(self, waiting: int) -> None:
        known = self._established() & waiting
        outvoted = not known & ~self._undone() and known.bit_count() < 3
        if outvoted and not self._unsaved():
            for number in bitmap.seats(known):
                self.members[number].established = False
        for number, seat in enumerate(self.members):
            seat.state = MemberState.IDLE
            seat.delivered = 0
            seat.established &= seat.wish != BARRED
            if bitmap.contains(waiting, number):
                seat.state = MemberState.HEALTHY
                seat.wish = 0
                seat.exited = 0
                seat.last_epoch = self.epoch
        self.judged = self.proven = 0
        self.rostered = self.epoch
        self.began = self.next_roster = waiting
        self.judges = bitmap.from_seats(
            one for one in bitmap.seats(waiting) if self.members[one].established
        )
        self.known_levels = 0
        self._fix()
        self._weigh([self.members[number] for number in bitmap.seats(waiting)])
        if self._established().bit_count() >= 3 and self.judges:
            self.kept = (self.known, self.first_untrained)
        if self.known.source is ModelSource.PEERS:
            levels = self._held(self._trusted_finishers() & waiting)
            lost = self._beyond_checkpoint() & ~levels
            if lost or not levels:
                self.kept = (self.known, self.first_untrained)
            marked = self.known.lost if levels else 0
            self._go_back(lost, whole=not levels)
            self.known = replace(self.known, lost=lost | marked)
        self.epoch_since = self.now
        self.start_step = self.step
        self.reason = ExitReason.NONE
        self.draining = 0
        self.rounds = [
            OracleRound(0, self.step, waiting, waiting, self._elected(waiting, established=False))
        ]
        self._enter(RunState.WARMUP)

    def _elected(self, roster: int, established: bool) -> int:
        seated = roster & self.healthy
        clients = (seated & self.judges if established else seated).bit_count()
        nodes = self.config.witness_nodes
        if established and nodes == 1:
            nodes = 2
        return min(nodes or clients, clients, MAX_WITNESSES)

    def _weigh(self, seats: list[Seat]) -> None:
        experienced = [seat for seat in seats if seat.weight]
        established = [seat for seat in experienced if seat.established]
        medians = [
            sorted(min(seat.declared, seat.weight) for seat in compared)[(len(compared) - 1) // 2]
            for compared in (experienced, established)
            if compared
        ]
        declared = sorted(seat.declared for seat in seats)
        if len(established) >= 3:
            medians = medians[-1:]
        median = max(medians, default=declared[(len(declared) - 1) // 2])
        for seat in seats:
            seat.weight = max(1, min(seat.declared, seat.weight or median, MEDIANS * median))

    def _forget(self) -> None:
        """Reset members that were not established before to newcomers' weights, because nobody has
        shown anything.
        """
        for seat in self.members:
            if seat.state is not MemberState.IDLE and not seat.established:
                seat.weight = int(seat.state is MemberState.EJECTED)

    def _go_back(self, lost: int, whole: bool) -> None:
        """Return to the durable checkpoint, for the levels that nobody has or for all."""
        durable = self.durable
        if whole:
            self._use_durable()
        hashes = list(self.known.hashes)
        attested = self.known.attested
        for level in bitmap.seats(0 if whole else lost):
            hashes[level] = durable.hashes[level]
            attested = attested & ~(1 << level) | (durable.hashes[level] != UNKNOWN) << level
        known = self.known
        self.known = Knowledge(
            tuple(hashes), attested, known.step, known.data_index, known.source, lost
        )

    def _use_durable(self) -> None:
        durable = self.durable
        attested = sum(1 << level for level, one in enumerate(durable.hashes) if one != UNKNOWN)
        source = ModelSource.CHECKPOINT
        self.known = Knowledge(
            durable.hashes, attested, durable.step, durable.data_index, source, 0
        )

    def _tick_warmup(self) -> bool:
        if self.healthy.bit_count() < self.config.min_clients:
            self._forget()
            for seat in self.members:
                seat.state = MemberState.IDLE
            self._restore()
            if self.cold and self.known.source is ModelSource.CHECKPOINT and not self.finishers:
                self.epoch_since = 0
            if self._has_unproven_claims():
                self.finishers = 0
            self._enter(RunState.WAITING_FOR_MEMBERS)
            return True
        if self.seed_slot:
            return False
        ready = self.round.ready.bit_count() >= quorum(self.round.elected)
        if not ready and not self._passed(self.since, self.config.warmup_time):
            return False
        self.rounds = []
        known = self.judges & self.healthy
        self.known_levels = self._held(self.judges) if known else 0
        for seat in self.members:
            seat.shown = (
                -1 if known and seat.state is MemberState.HEALTHY and not seat.established else 0
            )
        self._start_round(0, 0)
        return True

    def _start_round(self, height: int, unsettled: int) -> None:
        batch_size = 0 if self.draining else assignment.batch_size(self.config, self.data_index)
        batch: list[Interval] = []
        for waits in self.intervals()[:REDO]:
            taken = min(waits.len, batch_size - sum(piece.len for piece in batch))
            batch += [Interval(waits.start, taken)] if taken else []
            self.backlog -= set(range(waits.start, waits.start + taken))
        fresh = batch_size - sum(piece.len for piece in batch)
        roster, self.next_roster = self.next_roster, self.healthy
        established = self.rounds[-1].established if height else self._enough()
        alone = established and bool(roster & ~self.judges) and not self._has_room(BACKLOG // 2)
        if alone:
            weights = {number: self.members[number].weight for number in bitmap.seats(roster)}
            own = sum(
                weight for number, weight in weights.items() if bitmap.contains(self.judges, number)
            )
            fresh = max(0, batch_size * own // sum(weights.values()) - (batch_size - fresh))
        if fresh and self._has_room(0):
            batch.append(Interval(self.data_index, fresh))
            self.data_index += fresh
            data_index = self.data_index - fresh
        else:
            data_index = self.data_index
        round = OracleRound(
            height,
            self.step + unsettled,
            self.began,
            roster,
            self._elected(roster, established),
            established,
            trained_alone=alone,
            batch=tuple(batch),
        )
        round.data_index = data_index
        self.rounds.append(round)
        if not self.draining or self.is_audited():
            self._fix()
        if height == 0:
            self.cases = []
        self._enter(RunState.ROUND_TRAIN)

    def _has_room(self, more: int) -> bool:
        return len(self.intervals()) + more + ROOM <= BACKLOG

    def _tick_round(self) -> bool:
        round = self.round
        config = self.config
        if self.seed_slot:
            return False
        if self.state is RunState.ROUND_TRAIN:
            if config.min_round_time and not self._passed(self.since, config.min_round_time):
                return False
            if len(round.votes) < round.elected:
                enough = len(round.votes) >= round_quorum(round, round.elected)
                if not enough and not self._passed(self.since, config.max_round_train_time):
                    return False
                self._enter(RunState.ROUND_WITNESS)
                return True
        elif len(round.votes) < round.elected and not self._passed(
            self.since, config.round_witness_time
        ):
            return False
        self._close(round)
        return True

    def _close(self, round: OracleRound) -> None:
        judged = self.judged_by(round)
        round.attested = 0
        if judged is not None:
            round.attested, delivered = self._settle(round, judged)
            if delivered:
                self.step += 1
                self.judged += 1
                round.counts = True
                counted, owed = self._counted(round, judged, round.attested, delivered)
                self.proven |= owed
                for number in bitmap.seats(counted):
                    self.members[number].delivered += 1
        if self.draining:
            self.draining -= 1
            if self.draining:
                self._start_round(round.height + 1, 0)
            else:
                self._cool_down()
            return
        unsettled = int(bool(self.config.overlap and round.size))
        self.reason = self._exit_reason(round, unsettled)
        if self.reason is ExitReason.NO_ATTESTATION and self.config.overlap:
            self._put_back(round.batch)
        drains = self.config.overlap + self.is_audited()
        over = self.reason is not ExitReason.NONE
        if self.reason is ExitReason.NO_ATTESTATION or (over and not drains):
            self._cool_down()
            return
        self.draining = drains if over else 0
        self._start_round(round.height + 1, unsettled)

    def _stands(self) -> bool:
        """Return whether an established member delivered and stayed. If one delivered and all left
        by themselves, a newcomer must have delivered and stayed.
        """
        if self.step == self.start_step:
            return not self.is_provisional()
        if not self.judges:
            return True
        delivering_judges = self.judges & self.proven
        attesters = delivering_judges if self._remaining_judges() else self.proven
        return bool(delivering_judges) and bool(attesters & self.healthy)

    def is_provisional(self) -> bool:
        """Return whether the model comes from an epoch that may be undone."""
        before = self.kept and self.kept[0]
        return before is not None and (before.hashes, before.step) != (
            self.known.hashes,
            self.known.step,
        )

    def _remaining_judges(self) -> int:
        """Return the established members that did not leave by themselves."""
        gone = (MemberState.DROPPED, MemberState.RESTARTED, MemberState.LEFT_EARLY)
        return self.judges & (self.healthy | reduce(or_, map(self._seats, gone)))

    def _exit_reason(self, round: OracleRound, unsettled: int) -> ExitReason:
        config = self.config
        votes = len(round.votes)
        reasons = [
            (ExitReason.NO_ATTESTATION, votes == 0),
            (ExitReason.QUORUM_MISSING, votes < round_quorum(round, round.elected)),
            (ExitReason.TOO_FEW_CLIENTS, self.healthy.bit_count() < config.min_clients),
            (ExitReason.TOTAL_STEPS, self.step + unsettled > config.total_steps),
            (ExitReason.ROUNDS_PER_EPOCH, 0 < config.rounds_per_epoch <= round.height + 1),
            (ExitReason.EPOCH_TIME, self._passed(self.epoch_since, config.epoch_time or MONTH)),
            (ExitReason.PAUSE, self.pausing),
        ]
        return next((reason for reason, holds in reasons if holds), ExitReason.NONE)

    def _settle(self, round: OracleRound, judged: OracleRound) -> tuple[int, int]:
        """Return the members that delivered, and those of them that owed a result.

        The round is a step if any of them owed one. Missing sequences go to the backlog.
        """
        agreed = bitmap.from_seats(self._agreed(round)) & judged.roster
        shares = self.shares(judged)
        idle = bitmap.from_seats(number for number, share in shares.items() if not share)
        missing = {
            place
            for number, share in shares.items()
            if not bitmap.contains(agreed, number)
            for place in share
        }
        gaps = behind(judged.batch, missing)
        if gaps and not self._has_room(len(gaps)):
            agreed = 0
            gaps = list(judged.batch)
        self._put_back(gaps)
        again = numbers(gaps)
        sequences = numbers(judged.batch) - again
        assert not sequences & self.trained, "a sequence is trained twice"
        self.trained |= sequences
        if (
            agreed == judged.roster
        ):  # a quorum recorded a result of every member, including those that owed none
            return agreed, agreed if judged.batch else 0
        return agreed | idle, agreed & ~idle

    def _counted(
        self, round: OracleRound, judged: OracleRound, attested: int, delivered: int
    ) -> tuple[int, int]:
        """Return the members that delivered in the judged round, and those of them that owed a
        result.

        Where newcomers witness, these are the members that a majority of the elected recorded.
        While some witnesses are late, these are all that no majority left out.
        """
        if round.established:
            return attested, delivered
        if len(round.votes) == round.elected:
            by_majority = bitmap.from_seats(self._by_most(round)) & judged.roster
        else:
            by_majority = bitmap.from_seats(
                one for one in judged.members if not self._left_out(round, one)
            )
        owed_nothing = attested & ~delivered
        return by_majority | owed_nothing, by_majority & ~owed_nothing

    @staticmethod
    def _left_out(round: OracleRound, number: int) -> bool:
        """Return whether more than half of the elected witnesses attested without this member's
        result.
        """
        return sum(number not in vote.held for vote in round.votes) > round.elected // 2

    def _agreed(self, round: OracleRound) -> dict[int, int]:
        """Return the results that a quorum of a round's witnesses recorded."""
        return self._recorded(round, round_quorum(round, round.elected))

    def _by_most(self, round: OracleRound) -> dict[int, int]:
        """Return the results that more than half of the elected witnesses recorded."""
        return self._recorded(round, round.elected // 2 + 1)

    def _recorded(self, round: OracleRound, least: int) -> dict[int, int]:
        """Return the results that at least `least` of a round's witnesses recorded."""
        counts = Counter(
            (number, result) for vote in round.votes for number, result in vote.held.items()
        )
        return {number: result for (number, result), votes in counts.items() if votes >= least}

    def _put_back(self, intervals: Iterable[Interval]) -> None:
        more = numbers(intervals)
        assert not more & (self.backlog | self.trained), "a sequence waits twice"
        self.backlog |= more

    # --- the end of an epoch

    def _cool_down(self) -> None:
        known = self.known
        if self.step != self.start_step:
            applied = 1 + self.config.overlap
            trained = self._held(
                bitmap.from_seats(
                    number
                    for number, seat in enumerate(self.members)
                    if seat.state is MemberState.HEALTHY
                    or (seat.state is not MemberState.IDLE and seat.exited >= applied)
                )
            )
            hashes = [
                UNATTESTED if trained >> level & 1 else one
                for level, one in enumerate(known.hashes)
            ]
            self.known = Knowledge(
                tuple(hashes),
                known.attested & ~trained,
                known.step,
                known.data_index,
                known.source,
                known.lost,
            )
        self.statements = {level: {} for level in range(self.levels)}
        if self.judged:
            self.proven &= ~self._seats(MemberState.EJECTED)
            for number in bitmap.seats(self.proven & self.healthy):
                self.proven &= ~(0 if self._delivered_half(self.members[number]) else 1 << number)
            for number in bitmap.seats(self.judges & self.healthy):
                self.proven |= (self.members[number].shown >= 0) << number
        if self.judged and not self.judges:
            least = min(
                (self.members[number].tier for number in bitmap.seats(self.proven)),
                default=self.levels,
            )
            idle = [
                one
                for one in bitmap.seats(self.healthy & ~self.proven)
                if self.members[one].tier <= least
            ]
            idle = [one for one in idle if self._delivered_half(self.members[one])]
            self.proven |= (
                bitmap.from_seats(idle) if 4 * len(idle) <= self.proven.bit_count() else 0
            )
        if self.kept and self._stands():
            self.kept = None
        self._enter(RunState.COOLDOWN)

    def _record(self, level: int, level_hash: bytes) -> None:
        known = self.known
        hashes = [level_hash if one == level else old for one, old in enumerate(known.hashes)]
        attested = known.attested | 1 << level
        self.known = Knowledge(
            tuple(hashes), attested, self.step, self.first_untrained, known.source, known.lost
        )

    def _safe(self) -> bool:
        levels = self._held(self.healthy & self.round.roster)
        saved = self.known.step == self.step == self.durable.step
        attested = bool(levels) and not levels & ~self.known.attested
        return attested and saved and not self.is_audited()

    def _tick_cooldown(self) -> bool:
        if not self._safe():
            if not self._passed(self.since, self.config.cooldown_time):
                return False
            for level in range(self.levels):
                hashes = self.statements[level]
                silent = set(self.electees(level)) - set(hashes)
                gone = any(not bitmap.contains(self.healthy, number) for number in silent)
                known = bool(self.known_levels >> level & 1)
                new = known and not all(self.members[number].established for number in hashes)
                enough = len(hashes) > len(silent) if gone and new else len(hashes) >= len(silent)
                agreed = len(set(hashes.values())) == 1
                if enough and agreed and not self.known.attested >> level & 1:
                    self._record(level, next(iter(hashes.values())))
        self._end_epoch()
        return True

    def _unknown(self) -> int:
        """Return the trained, unattested levels of which half of the committee or more has left."""
        lost = 0
        for level in range(self.levels):
            electees = self.electees(level)
            here = [number for number in electees if bitmap.contains(self.healthy, number)]
            if self.known.hashes[level] == UNATTESTED and 2 * len(here) <= len(electees):
                lost |= (self.step != self.start_step) << level
        return lost

    def _end_epoch(self) -> None:
        unknown = self._unknown()
        undone = self._restore()
        healthy = self.healthy & self.round.roster
        worked = self.step > self.start_step
        earned = self.rates[0] // healthy.bit_count() if healthy else 0
        for seat in self.members:
            if seat.state is MemberState.HEALTHY and worked:
                seat.points += earned
            elif seat.state is MemberState.EJECTED:
                taken = min(seat.points, self.rates[1])
                seat.points, seat.slashed = seat.points - taken, seat.slashed + taken
                seat.established = False
            if self.judged and not undone:
                seat.weight = self._shown(seat)
        if undone or not self.judged:
            self._forget()
        for seat in self.members:
            seat.state = MemberState.IDLE
        if not undone:
            self._record_finishers(healthy, unknown)
        elif self._has_unproven_claims():
            self.finishers = 0
        self.epoch += 1
        if self.pausing:
            self._pause()
            return
        self.cold = False
        over = self.step > self.config.total_steps
        if over:
            self._dismiss()
        self._enter(RunState.FINISHED if over else RunState.WAITING_FOR_MEMBERS)

    def _shown(self, seat: Seat) -> int:
        """Return the highest weight that a member may have in the next epoch."""
        if seat.state is MemberState.IDLE:
            return seat.weight
        if seat.state is MemberState.LEFT_EARLY:
            return max(seat.weight // 2, 1)
        if seat.state is MemberState.EJECTED:
            return 1
        return min(max(2 * seat.weight * (8 * seat.delivered // self.judged) // 8, 1), 0xFFFF)

    def _has_unproven_claims(self) -> bool:
        return bool(self.finishers) and not self.finishers & self._established()

    def _record_finishers(self, healthy: int, unknown: int) -> None:
        judges = [self.members[number] for number in bitmap.seats(self.judges)]
        judges = [seat for seat in judges if seat.established]
        smallest_tier = min((seat.tier for seat in judges if seat.shown >= 0), default=self.levels)
        at_risk = self._established().bit_count() >= 3 and bool(self.judges)
        if not at_risk or self.rounds[-1].established:
            for seat in judges:  # including members that have left
                seat.established = seat.shown >= 0 or (
                    seat.shown >= -ABSENT and seat.tier < smallest_tier
                )
        for number in bitmap.seats(healthy & self.proven):
            self.members[number].established = True
        trained = healthy & self._established()
        holders = trained if trained and self.step != self.start_step else healthy
        if self.step == self.start_step and self.known.source is ModelSource.PEERS:
            # the previous finishers still have the newest model
            remaining = self.finishers & ~(self.began & ~healthy)
            holders = remaining | healthy & self._established() if remaining else healthy
            holders = healthy & self._established() if self._has_unproven_claims() else holders
        self.finishers = holders & ~self._unwanted()
        marked = self.known.lost if self.step == self.start_step else unknown
        if unknown == self.every:
            self._use_durable()
            return
        self._go_back(unknown, whole=False)
        known = self.known
        source = known.source
        if known.attested and known.step == self.step:
            source = ModelSource.PEERS
        elif source is ModelSource.CHECKPOINT:
            self._use_durable()
            return
        self.known = Knowledge(
            known.hashes, known.attested, known.step, known.data_index, source, marked
        )

    def _restore(self) -> bool:
        """Undo what a provisional epoch changed. Finishers that were removed stay removed."""
        self.finishers &= ~self._unwanted()
        if self.kept is None:
            return False
        (self.known, data_index), self.kept = self.kept, None
        self.proven = 0
        if self.step != self.start_step:
            self.step = self.start_step
            self.data_index = data_index
            self.backlog = set()
            self.trained = {one for one in self.trained if one < data_index}
        return True

    def _unwanted(self) -> int:
        return bitmap.from_seats(
            number for number, seat in enumerate(self.members) if seat.wish >= REMOVED
        )

    def _pause(self) -> None:
        if self.state is RunState.WARMUP:
            self._forget()
            self._restore()
        self._dismiss()
        for seat in self.members:
            seat.state = MemberState.IDLE
        self.pausing = False
        self.cold = True
        self._enter(RunState.PAUSED)

    def _dismiss(self) -> None:
        for seat in self.members:
            seat.wish = 0 if seat.wish == WAITS else seat.wish
