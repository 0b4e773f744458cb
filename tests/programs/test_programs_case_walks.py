"""Play random audits: accusations, true and false votes, and leavers. Program and oracle agree."""

from __future__ import annotations

import random

import pytest

from aftermath.rules import bitmap
from aftermath.rules.run import RoundId
from aftermath.rules.state import MemberState
from programs.oracle_comparison import WALLETS, Comparison
from programs.oracle_records import WAITS
from programs.scenario import CONFIG

TIERS = (0, 0, 0, 0, 0, 1, 1, 0, 2)


class CaseWalk:
    """One run driven at random. It counts the decided cases."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.rng = random.Random(seed)
        percent = self.rng.choice([30, 100])
        self.comparison = Comparison(
            **dict(CONFIG)
            | {"verification_percent": percent, "overlap": overlap, "rounds_per_epoch": 9}
            | {"init_min_clients": 5, "join_bond": 1000}
        )
        self.convictions = 0
        self.acquittals = 0

    def step(self) -> None:
        """Let members do what is due, and send some verdicts."""
        us = self.comparison.oracle
        if not us.state.active:
            self.join()
        elif us.state.training:
            self.attest()
        for _ in range(self.rng.randint(0, 25) if us.state.active else 0):
            self.verify()
        if us.state.active and self.rng.random() < 0.05:
            self.comparison.leave(self.rng.randrange(WALLETS), self.comparison.place)
        self.comparison.wait(self.rng.choice([1, 6, 21, 31]))
        self.comparison.tick(0)

    def join(self) -> None:
        us = self.comparison.oracle
        for index in range(WALLETS):
            number = us.find(index)
            if number is None or us.members[number].wish != WAITS:
                self.comparison.enroll(index, 1000)
                self.comparison.join(index, TIERS[index])

    def attest(self) -> None:
        """Let most witnesses attest all results but, sometimes, that of one member."""
        us = self.comparison.oracle
        at = self.comparison.place
        judged = us.judged_by(us.round)
        silent = self.rng.choice([None, None, self.rng.randrange(WALLETS)])
        results = {seat: 1 for seat in judged.members if seat != silent} if judged else {}
        for seat in sorted(us.witnesses()):
            if us.state.training and at == self.comparison.place and self.rng.random() < 0.95:
                self.comparison.witness(us.members[seat].wallet, seat, at, results)

    def verify(self) -> None:
        """Send a verdict about a stored round: that of an auditor or juror, or any other."""
        us = self.comparison.oracle
        rounds = us.rounds[-5:]
        if not us.state.active or not rounds:
            return
        round = self.rng.choice(rounds)
        seat = self.rng.randrange(len(us.members))
        target = self.rng.randrange(len(us.members))
        mismatch = self.rng.random() < 0.5
        cases = us.open_cases()
        drawn = us.audits(round) or {}
        if cases and self.rng.random() < 0.8:
            case = self.rng.choice(cases)
            round = case.round
            target = case.target
            seat = self.rng.choice(case.jury)
            mismatch = (target + round.height) % 2 == 0
        elif drawn and self.rng.random() < 0.9:
            target = self.rng.choice(sorted(drawn))
            seat = drawn[target][0]
            mismatch = True
        ejected = us._seats(MemberState.EJECTED)
        round_id = RoundId(us.epoch, round.height, round.seed or 0)
        self.comparison.verify(us.members[seat].wallet, seat, round_id, target, mismatch)
        after = us._seats(MemberState.EJECTED)
        self.convictions += bitmap.contains(after & ~ejected, target)
        self.acquittals += bool(after & ~ejected & ~(1 << target))


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 9))]
)
def test_random_cases_follow_oracle(seed: int, overlap: int) -> None:
    walk = CaseWalk(seed, overlap)
    for _ in range(120):
        walk.step()
    assert walk.comparison.oracle.epoch >= 1
    assert walk.convictions + walk.acquittals >= 1
    if seed == 0:
        assert walk.convictions
        assert walk.acquittals
