"""Test that a member that skips work is convicted, and that the others finish the run.

On a chain and on a server.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from xprocess import XProcess

from e2e.cluster import TrainingCluster
from e2e.event_log import compare_replicas
from e2e.run_inputs import RunInputs
from e2e.server_run import SCRIPT, ServerRun, ServerRunOptions
from hostile.audited_run import CHEATING, EPOCHS, ROUND_SECONDS, RULES, play

pytestmark = pytest.mark.timeout(3600)
STEPS = {60: 24, 6: 84}
"""Steps by `verification_percent`. At 6 %, one of about 41 drawable results is drawn with 92 %."""


@pytest.mark.parametrize(
    ("engine", "percent", "precision"),
    [
        pytest.param("embedded", 60, "bf16", marks=pytest.mark.slow),
        pytest.param("embedded", 60, "fp32", marks=pytest.mark.nightly),
        pytest.param("validator", 60, "bf16", marks=pytest.mark.nightly),
        pytest.param("embedded", 6, "fp32", marks=pytest.mark.nightly),
        pytest.param("validator", 6, "fp32", marks=pytest.mark.nightly),
    ],
    indirect=["engine"],
)
def test_cheating_member_loses_its_bond(
    cluster: TrainingCluster, run_inputs: RunInputs, percent: int, precision: str
) -> None:
    play_result = play(
        cluster,
        run_inputs,
        {4: "half"},
        percent=percent,
        steps=STEPS[percent],
        options=("--precision", precision),
    )
    losers = play_result.seats("case_decided", "loser")
    if percent == 6 and not losers:  # the cheater's results were not drawn by chance
        assert not play_result.forfeited
        return
    assert play_result.seat is not None
    assert losers == play_result.seats("case_opened", "seat") == {play_result.seat}
    assert play_result.forfeited == 1 << play_result.seat
    assert play_result.seats("audited", "seat", verdict="mismatch") == {play_result.seat}


@pytest.mark.slow
def test_cheating_client_of_server_is_ejected(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    steps = STEPS[60]
    free = {name: value for name, value in RULES.items() if name != "join_bond"}
    lengths = {
        "min_round_time": ROUND_SECONDS,
        "rounds_per_epoch": steps // EPOCHS,
        "total_steps": steps,
    }
    server_run = ServerRun(
        xprocess,
        tmp_path,
        run_inputs,
        ServerRunOptions(),
        **free,
        **lengths,
        verification_percent=60,
    )
    try:
        *honest, cheater = [
            server_run.start(
                0, number, [sys.executable, CHEATING, "half"] if number == 4 else SCRIPT
            )
            for number in range(5)
        ]
        logs = server_run.event_logs

        def losers() -> set[int]:
            return {
                event["loser"] for name in honest for event in logs[name].events_of("case_decided")
            }

        server_run.until(lambda: bool(losers()), "the cheating client is ejected")
        server_run.members[cheater].kill()
        assert [server_run.members[name].wait() for name in honest] == [0, 0, 0, 0]
        assert losers() == {logs[cheater].events_of("joined")[-1]["seat"]}
        assert compare_replicas({name: logs[name] for name in honest}) > 0
    finally:
        server_run.kill_all()
