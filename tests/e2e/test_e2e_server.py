"""Tests of a run on a server with three members as real processes, which are killed with kill -9.

The members share only the server's address. The server sends them the addresses of their peers and
serves their tokens.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import mean

import pytest
from xprocess import XProcess

from e2e.event_log import applied_sequences, compare_replicas
from e2e.network_namespaces import lan, possible
from e2e.run_inputs import RunInputs
from e2e.server_run import ServerRun, ServerRunOptions

pytestmark = pytest.mark.slow
STEPS = 24
BATCH = 9
LATE = 4  # rounds whose data may still be in the backlog at the run's end


def check_whole(server_run: ServerRun, name: str, steps: int) -> None:
    """Check that a member that was present all the time applied every step once and no sequence
    twice, and that its loss fell.

    Shares of the last rounds that a killed or slow member did not train are in the backlog when the
    run ends.
    """
    event_log = server_run.event_logs[name]
    assert [event["step"] for event in event_log.events_of("applied")] == list(range(1, steps + 1))
    sequences = applied_sequences(event_log)
    sure = (steps - LATE) * BATCH
    assert sequences[:sure] == list(range(sure))
    losses = [event["loss"] for event in event_log.events_of("trained")]
    assert mean(losses[-3:]) < mean(losses[:3])


def test_server_run_survives_kill_of_server_and_member(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    server_run = ServerRun(
        xprocess,
        tmp_path,
        run_inputs,
        ServerRunOptions(),
        rounds_per_epoch=STEPS // 3,
        total_steps=STEPS,
    )
    try:
        names = [server_run.start(tier) for tier in (0, 1, 2)]
        server_run.until(lambda: server_run.applied(names[0]) >= 2, "rounds continue")
        server_run.server.kill()  # in the middle of a round
        before = server_run.applied(names[0])
        server_run.start_server()
        server_run.until(
            lambda: server_run.applied(names[0]) > before + 1,
            "they continue with the server that came back",
        )
        server_run.until(
            lambda: server_run.applied(names[2]) >= STEPS // 3 + 2, "the second epoch runs"
        )
        server_run.members[names[2]].kill()
        gone = f"{server_run.identities[names[2]]} is withdrawn from the run"
        server_run.until(lambda: gone in server_run.server.output, "who is gone is withdrawn")
        server_run.start(2)
        assert [server_run.members[name].wait() for name in names] == [0, 0, 0]
        check_whole(server_run, names[0], STEPS)
        assert compare_replicas(server_run.event_logs) > STEPS
    finally:
        server_run.kill_all()


def test_only_client_of_server_that_stops_ends_with_lost_steps(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    alone = {"init_min_clients": 1, "min_clients": 1}
    server_run = ServerRun(
        xprocess, tmp_path, run_inputs, ServerRunOptions(), rounds_per_epoch=100, **alone
    )
    try:
        name = server_run.start(0)
        server_run.until(lambda: server_run.applied(name) >= 2, "the client trains")
        member = server_run.members[name]
        member.interrupt(90)
        assert member.code == 12
        event_log = server_run.event_logs[name]
        (stopped,) = event_log.events_of("stopped")
        assert stopped["step"] >= 2
        assert not stopped["continues"]
        assert Path(stopped["path"]).is_dir()
        assert "the run goes back to the initial model" in event_log.events[-1]["message"]
        server_run.start(0)
        lost = "steps of training are lost"
        server_run.until(
            lambda: any(lost in event["message"] for event in event_log.events_of("warning")),
            "the next start begins from the checkpoint",
        )
    finally:
        server_run.kill_all()


def test_members_on_separate_networks_meet_through_tls_server(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    if not possible():
        pytest.skip("network namespaces need root and iproute2")
    certificate = str(tmp_path / "cert.pem")
    key = str(tmp_path / "key.pem")
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    with lan(3) as network:
        names = [
            "-addext",
            f"subjectAltName=IP:{network.here}",
            "-keyout",
            key,
            "-out",
            certificate,
        ]
        subprocess.run([*line.split(), *names], check=True, capture_output=True)
        keeping = ("--tls-certificate", certificate, "--tls-key", key)
        # the server's own data service is at a private address
        reach = ("--data-root", "/", "--allow-private-network")
        options = ServerRunOptions(
            network.here,
            keeping,
            ("--tls-ca", certificate, "--iroh-relay", "disabled", *reach),
            network.machines,
        )
        server_run = ServerRun(
            xprocess, tmp_path, run_inputs, options, rounds_per_epoch=6, total_steps=6
        )
        try:
            tiers = [server_run.start(tier) for tier in (0, 1, 2)]
            assert [server_run.members[name].wait() for name in tiers] == [0, 0, 0]
            check_whole(server_run, tiers[0], 6)
            assert compare_replicas(server_run.event_logs) > 6
        finally:
            server_run.kill_all()
