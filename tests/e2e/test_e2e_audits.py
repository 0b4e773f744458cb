"""Test that a member that skips work is convicted, and that the others finish the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from aftermath.rules.state import MemberState, RunState
from e2e.cluster import TrainingCluster
from e2e.run_inputs import RunInputs

CHEAT = Path(__file__).with_name("cheating_member.py")
BOND = 2_000_000  # lamports
EPOCHS = 2
STEPS = {60: 24, 6: 84}
"""Steps by `verification_percent`. Of 84 results, at least one is drawn with 99 %."""
RULES = {
    "min_clients": 3,
    "init_min_clients": 4,
    "waiting_for_members_extra_time": 20,
    "min_round_time": 2,
    "max_round_train_time": 60,
    "global_batch_size_start": 20,
    "global_batch_size_end": 20,
    "join_bond": BOND,
}
LIMIT = ("--max-bond", str(BOND))


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
    steps = STEPS[percent]
    lengths = {"rounds_per_epoch": steps // EPOCHS, "total_steps": steps}
    rules = RULES | lengths | {"verification_percent": percent}
    cluster.configure(run_inputs.config(cluster.place, **rules))
    *honest, cheat = [cluster.add_member(0) for _ in range(5)]
    process = cluster.launch(cheat, [sys.executable, CHEAT, *cluster.line(cheat, *LIMIT)])
    for member in honest:
        cluster.start(member, *LIMIT)
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)

    def is_over() -> bool:
        seat = cluster.seat(cheat)
        is_ejected = seat is not None and seat.state is MemberState.EJECTED
        return is_ejected or cluster.run.state is RunState.FINISHED

    cluster.until(is_over, "the cheating member is ejected")
    seat = cluster.chain_members.find(bytes(cheat.wallet))
    forfeited = cluster.chain_members.forfeited
    process.kill()  # or it would pay another bond and come back
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in honest] == [0, 0, 0, 0]

    assert cluster.run.trained_steps == steps
    assert cluster.compare_replicas() > 0
    losers = {
        event["loser"] for member in honest for event in member.event_log.events_of("case_decided")
    }
    accused = {
        event["seat"] for member in honest for event in member.event_log.events_of("case_opened")
    }
    if percent == 6 and not losers:  # the cheating member's results were not drawn by chance
        assert not forfeited
        return
    assert losers == accused == {seat}
    assert forfeited == 1 << seat
    verdicts = [event for member in honest for event in member.event_log.events_of("audited")]
    assert {event["seat"] for event in verdicts if event["verdict"] == "mismatch"} == {seat}
