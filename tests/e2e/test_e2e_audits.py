"""Test that a member that skips work is convicted, and that the others finish the run."""

from __future__ import annotations

import pytest

from e2e.audited_run import play
from e2e.cluster import TrainingCluster
from e2e.run_inputs import RunInputs

STEPS = {60: 24, 6: 84}
"""Steps by `verification_percent`. Of 84 results, at least one is drawn with 99 %."""


@pytest.mark.parametrize(
    ("engine", "percent"),
    [
        pytest.param("embedded", 60, marks=pytest.mark.slow),
        pytest.param("validator", 60, marks=pytest.mark.nightly),
        pytest.param("embedded", 6, marks=pytest.mark.nightly),
        pytest.param("validator", 6, marks=pytest.mark.nightly),
    ],
    indirect=["engine"],
)
def test_cheating_member_loses_its_bond(
    cluster: TrainingCluster, run_inputs: RunInputs, percent: int
) -> None:
    found = play(cluster, run_inputs, {4: "half"}, percent=percent, steps=STEPS[percent])
    losers = found.seats("case_decided", "loser")
    if percent == 6 and not losers:  # the cheating member's results were not drawn by chance
        assert not found.forfeited
        return
    assert found.seat is not None
    assert losers == found.seats("case_opened", "seat") == {found.seat}
    assert found.forfeited == 1 << found.seat
    assert found.seats("audited", "seat", verdict="mismatch") == {found.seat}
