"""A minority of a run's members attacks its audits: no honest member is ejected, and no sequence is
lost.
"""

from __future__ import annotations

import os
import random

import pytest

from aftermath.sim.chain_invariants import InvariantBroken
from aftermath.sim.coalition import Ballot, Coalition, Habits, is_minority
from programs.audit_coalitions import CoalitionRun

CAMPAIGN = int(os.environ.get("AUDIT_RUNS", "2000"))
PARTS = 10
FEW = 8
LIAR = Habits(cheats=0.0, accuses=1.0, ballot=Ballot.LIE, leaves=0.0)


def play(seeds: range) -> tuple[int, int]:
    """Play runs, and return how many cases convicted their target or their auditor."""
    convictions = 0
    acquittals = 0
    for seed in seeds:
        audited = CoalitionRun(seed)
        try:
            audited.play()
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        convictions += audited.convictions
        acquittals += audited.acquittals
    return convictions, acquittals


def test_minority_convicts_no_honest_member_in_few_runs() -> None:
    convictions, acquittals = play(range(FEW))
    assert convictions
    assert acquittals


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_minority_convicts_no_honest_member_in_campaign(part: int) -> None:
    """To play another number of runs: AUDIT_RUNS=100."""
    count = CAMPAIGN // PARTS
    convictions, acquittals = play(range(1000 + part * count, 1000 + (part + 1) * count))
    print(f"{count} runs, {convictions} convictions, {acquittals} acquittals")
    assert convictions > count / 10
    assert acquittals > count / 10


def test_majority_breaks_invariant() -> None:
    """Otherwise the campaign would find nothing, whatever the program did."""
    audited = CoalitionRun(1)
    liars = {seat: LIAR for seat in audited.tiers if seat}
    audited.coalition = Coalition(random.Random(0), liars, lambda height, seat: False)
    with pytest.raises(InvariantBroken, match="ejected the honest member 0"):
        audited.play()


@pytest.mark.parametrize(
    ("chosen", "expected"), [({0}, True), ({0, 1}, False), ({2, 3}, True), ({2, 3, 4}, False)]
)
def test_minority_is_less_than_third_of_each_committee(chosen: set[int], expected: bool) -> None:
    """Four members hold the whole model, and eight hold the part of tier 1."""
    tiers = {0: 0, 1: 0, 5: 0, 6: 0, 2: 1, 3: 1, 4: 1, 7: 1}
    assert is_minority(chosen, tiers) == expected
