"""Test with real processes that audits convict members that cheat, and nobody else."""

from __future__ import annotations

import pytest

from e2e.cluster import TrainingCluster
from e2e.processes import PATIENCE
from e2e.run_inputs import RunInputs
from hostile.audited_run import play

pytestmark = pytest.mark.timeout(3 * PATIENCE)
PERCENT = 60
STEPS = 24
FALSE_RESULTS = {
    "other data": {4: "other data"},
    "a friend's results": {0: "lends", 4: "borrows"},
}
"""Per test case, the cheat of each hostile member. The last one sends false results."""


@pytest.mark.nightly
@pytest.mark.parametrize("cheats", FALSE_RESULTS.values(), ids=FALSE_RESULTS)
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_member_with_false_results_loses_its_bond(
    cluster: TrainingCluster, run_inputs: RunInputs, cheats: dict[int, str]
) -> None:
    result = play(cluster, run_inputs, cheats, percent=PERCENT, steps=STEPS)
    assert result.seat is not None
    assert result.forfeited == 1 << result.seat
    assert result.seats("case_decided", "loser") == {result.seat}
    assert result.seats("audited", "seat", verdict="mismatch") == {result.seat}


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_accuser_of_honest_members_loses_its_bond(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    result = play(
        cluster,
        run_inputs,
        {4: "accuses"},
        percent=PERCENT,
        steps=STEPS,
    )
    assert result.seat is not None
    assert result.forfeited == 1 << result.seat
    assert result.seats("case_decided", "loser") == {result.seat}
    assert result.seats("case_opened", "auditor") == {result.seat}
    assert not result.seats("audited", "seat", verdict="mismatch")
