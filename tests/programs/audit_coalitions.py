"""Random runs in which a minority cheats, accuses, votes falsely, or leaves.

The program is the real one. Honest members only follow the rules of audits, without a model.
"""

from __future__ import annotations

import random

from aftermath.chain import views
from aftermath.rules import bitmap
from aftermath.rules.audits import Case, auditable_heights, drawn_results
from aftermath.rules.members import Members
from aftermath.rules.run import Run
from aftermath.rules.state import RunState
from aftermath.sim.chain_invariants import ChainRecord, InvariantBroken
from aftermath.sim.coalition import Coalition, Habits, Statement, draw_minority, is_minority
from programs.audit_cases import start_established
from programs.harness import Outcome, World
from programs.scenario import Scenario

EPOCHS = 2
HASHES = {level: bytes([level + 1]) * 32 for level in range(3)}
FALSE_HASHES = {level: bytes([level + 101]) * 32 for level in range(3)}
_PROMPT = 0.7
"""Probability that an honest member has ended a replay when it is asked."""


class CoalitionRun:
    """One run, drawn from a seed. Indices of members are their seats."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"audits {seed}")
        established = rng.randint(4, 9)
        count = established + rng.choice((0, 0, 1, 2, 3))
        self.tiers = {seat: rng.choice((0, 0, 0, 1, 2)) if seat else 0 for seat in range(count)}
        self.run = Scenario(World()).start(
            init_min_clients=3,
            verification_percent=rng.choice((20, 60, 100)),
            overlap=rng.randint(0, 1),
            rounds_per_epoch=rng.randint(3, 6),
            global_batch_size_start=rng.randint(count, 3 * count),
            global_batch_size_end=3 * count,
            join_bond=1000,
        )
        start_established(self.run, self.tiers, range(established))
        self.record = ChainRecord()
        self.false: set[tuple[int, int]] = set()
        """(height, seat) of the false results of the running epoch."""
        self.deserters = rng.choice((0.0, 0.0, 0.01))
        """Probability that an honest member leaves, whenever it is asked."""
        self.convictions = 0
        self.acquittals = 0
        self._members: tuple[int, Members] | None = None
        judges = {seat: tier for seat, tier in self.tiers.items() if seat < established}
        newcomers = {seat for seat in range(established, count) if rng.random() < 0.4}
        chosen = draw_minority(rng, judges) | newcomers
        self.habits = {seat: Habits.draw(rng) for seat in sorted(chosen)}
        self.coalition = self._coalition()
        self.note()

    def _coalition(self) -> Coalition:
        """Return the coalition of this epoch: fewer than a third of the established members."""
        judges = {
            seat: tier
            for seat, tier in self.tiers.items()
            if bitmap.contains(self.members.judges, seat)
        }
        chosen: set[int] = set()
        for seat in self.rng.sample(sorted(self.habits), len(self.habits)):
            among = (chosen | {seat}) & judges.keys()
            if seat not in judges or is_minority(among, judges):
                chosen.add(seat)
        habits = {seat: self.habits[seat] for seat in sorted(chosen)}
        return Coalition(self.rng, habits, lambda height, seat: (height, seat) in self.false)

    # --- reading

    @property
    def state(self) -> Run:
        return self.run.run

    @property
    def members(self) -> Members:
        """The members, read again only after a change, because that takes long."""
        version = self.state.members_seq
        if self._members is None or self._members[0] != version:
            self._members = version, self.run.members
        return self._members[1]

    def _witnesses(self) -> bytes:
        return self.run.world.data(self.run.accounts["witnesses"])

    @property
    def cases(self) -> tuple[Case, ...]:
        offset, length = views.witnesses_cases_range()
        return views.parse_cases(self._witnesses()[offset : offset + length])

    @property
    def open_cases(self) -> list[Case]:
        state = self.state
        return [case for case in self.cases if case.is_open(state)]

    # --- what must hold

    def note(self) -> None:
        """Record the accounts, and check that no honest member was ejected."""
        before = len(self.record.ejected)
        state = self.state
        self.record.note(state, self.members, self.cases, self.run.backlog)
        for epoch, seat in self.record.ejected[before:]:
            if seat not in self.coalition.habits:
                raise InvariantBroken(f"epoch {epoch} ejected the honest member {seat}")
        if state.state is RunState.WAITING_FOR_MEMBERS:
            self.record.check_coverage(self.run.backlog)

    def check_decided(self) -> None:
        """Check that no case is open on which all honest jurors have voted."""
        for case in self.open_cases:
            honest = case.jury & ~bitmap.from_seats(self.coalition.habits)
            if honest and not honest & ~(case.mismatches | case.matches):
                raise InvariantBroken(f"all honest jurors have voted on the open case {case}")

    # --- what members do

    def send(self, seat: int, name: str, *arguments: object) -> Outcome:
        outcome = self.run.by(seat, name, *arguments)
        self.note()
        return outcome

    def play(self) -> None:
        """Play two epochs. Raises InvariantBroken."""
        for epoch in range(EPOCHS):
            if epoch:
                self.begin_epoch()
            while self.state.state.training:
                self.round()
            self.cool_down()
            if self.state.epoch <= epoch:
                raise InvariantBroken(f"epoch {epoch} has not ended: {self.state}")

    def begin_epoch(self) -> None:
        for seat, tier in self.tiers.items():
            if not bitmap.contains(self.members.forfeited, seat):
                self.run.join(seat, tier=tier).ok()
                self.note()
        self.false.clear()
        for wait in (86_401, 0, 31):
            self.run.world.advance(wait)
            self.run.tick()
            self.note()
        self.coalition = self._coalition()

    def round(self) -> None:
        """Let the elected attest, and members audit meanwhile."""
        state = self.state
        height = state.current.height
        judged = state.round(state.config.judged(height))
        delivered = judged.roster if judged else 0
        for seat, habits in self.coalition.habits.items():
            if self.rng.random() < habits.cheats:
                self.false.add((height, seat))
            if self.rng.random() < 0.05:
                delivered &= ~(1 << seat)
        elected = self.run.elected()
        self.rng.shuffle(elected)
        middle = self.rng.randrange(len(elected) + 1)
        for number, seat in enumerate(elected):
            if number == middle:
                self.audit()
            if self.state.current.height == height and self.state.state.training:
                self.attest(seat, delivered)
        self.audit()
        for wait in (21, 6):
            if self.state.current.height == height and self.state.state.training:
                self.run.world.advance(wait)
                self.run.tick()
                self.note()
        self.run.world.advance(0)
        if not self.state.seed_is_drawn:
            self.run.tick()
            self.note()
        self.audit()

    def attest(self, seat: int, delivered: int) -> None:
        lies = seat in self.coalition.habits and self.rng.random() < 0.2
        if lies and self.rng.random() < 0.5:
            return
        seen = delivered & self.rng.getrandbits(256) if lies else delivered
        self.run.witness(seat, seen)
        self.note()

    def audit(self) -> None:
        """Let honest and other members open cases, vote and leave, in a random order."""
        if not self.state.active:
            return
        duties = [*self._duties(), *self._lies()]
        self.rng.shuffle(duties)
        for duty in duties:
            self.verify(duty)
        self.check_decided()
        leavers = self.coalition.leavers(self.members)
        if self.rng.random() < self.deserters:
            leavers.append(self.rng.choice(sorted(self.tiers)))
        for seat in leavers:
            self.send(seat, "leave_run", self.state.round_id)

    def verify(self, duty: Statement) -> None:
        before = len(self.record.ejected)
        voided = sum(map(len, self.record.void.values()))
        self.send(duty.seat, "verify", duty.seat, duty.at, duty.target, duty.mismatch)
        self.convictions += sum(map(len, self.record.void.values())) > voided
        ejected = [seat for _, seat in self.record.ejected[before:]]
        self.acquittals += bool(ejected) and duty.target not in ejected

    def _lies(self) -> list[Statement]:
        return self.coalition.statements(self.state, self.members, self.cases)

    def _duties(self) -> list[Statement]:
        """Return the true accusations and votes of honest members that have ended a replay."""
        state = self.state
        members = self.members
        healthy = members.healthy & ~bitmap.from_seats(self.coalition.habits)
        found = []
        for height in auditable_heights(state):
            header = state.round(height)
            assert header is not None
            for target, auditor in drawn_results(state, members, height).items():
                is_false = (height, target) in self.false
                if is_false and bitmap.contains(healthy, auditor):
                    at = state.round_id._replace(height=height, seed=header.seed)
                    found.append(Statement(auditor, at, target, True))
        for case in self.open_cases:
            for seat in bitmap.seats(healthy & case.jury):
                if case.may_vote(state, seat):
                    is_false = (case.height, case.target) in self.false
                    at = case.round_id(state.epoch)
                    found.append(Statement(seat, at, case.target, is_false))
        return [one for one in found if self.rng.random() < _PROMPT]

    def cool_down(self) -> None:
        """Let members attest, save a checkpoint and audit, until the epoch ends."""
        seats = sorted(self.tiers)
        self.rng.shuffle(seats)
        for seat in seats:
            if self.state.state is not RunState.COOLDOWN:
                return
            if self.rng.random() < 0.3:
                self.audit()
            if not bitmap.contains(self.members.healthy, seat):
                continue
            hashes = FALSE_HASHES if seat in self.coalition.habits else HASHES
            held = {level: hashes[level] for level in range(self.tiers[seat], 3)}
            self.run.attest(seat, held)
            self.note()
        named = {"kind": 1, "repo": "r", "revision": "", "hashes": list(HASHES.values())}
        if self.rng.random() < 0.5:
            self.send(min(bitmap.seats(self.members.healthy), default=0), "checkpoint", named)
        for _ in range(3):
            self.audit()
        if self.state.state is RunState.COOLDOWN:
            self.run.world.advance(31)
            self.run.tick()
            self.note()
