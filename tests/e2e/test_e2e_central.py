"""A run without a chain: a server and three members as real processes, and kill -9 of the one and
of the others.

The members share nothing but the server's address: it tells them where their peers are, and serves
their tokens.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from statistics import mean

import pytest
from xprocess import XProcess

from e2e.central import Central, Setting
from e2e.diary import applied_sequences, compare_replicas
from e2e.lan import HERE, lan, possible
from e2e.material import Material

pytestmark = pytest.mark.slow
STEPS = 24
BATCH = 9
LATE = 4  # rounds whose data may be done again after the run's end


def check_whole(central: Central, name: str, steps: int) -> None:
    """A member that was there all the time applied every step once, no sequence twice, and learnt
    something.

    Shares of the last rounds that a killed or slow member left undone are in the run's backlog when
    it ends.
    """
    diary = central.diaries[name]
    assert [event["step"] for event in diary.saw("applied")] == list(range(1, steps + 1))
    done = applied_sequences(diary)
    sure = (steps - LATE) * BATCH
    assert done[:sure] == list(range(sure))
    losses = [event["loss"] for event in diary.saw("trained")]
    assert mean(losses[-3:]) < mean(losses[:3])


def test_a_run_outlives_kill_9_of_its_server_and_of_a_member(
    xprocess: XProcess, material: Material, tmp_path: Path
) -> None:
    central = Central(
        xprocess, tmp_path, material, Setting(), rounds_per_epoch=STEPS // 3, total_steps=STEPS
    )
    try:
        names = [central.start(tier) for tier in (0, 1, 2)]
        central.until(lambda: central.applied(names[0]) >= 2, "rounds continue")
        central.server.kill()  # in the middle of a round
        before = central.applied(names[0])
        central.start_server()
        central.until(
            lambda: central.applied(names[0]) > before + 1,
            "they continue with the server that came back",
        )
        central.until(lambda: central.applied(names[2]) >= STEPS // 3 + 2, "the second epoch runs")
        central.members[names[2]].kill()
        gone = f"{central.identities[names[2]]} is withdrawn from the run"
        central.until(lambda: gone in central.server.output, "who is gone is withdrawn")
        central.start(2)
        assert [central.members[name].wait() for name in names] == [0, 0, 0]
        check_whole(central, names[0], STEPS)
        assert compare_replicas(central.diaries) > STEPS
    finally:
        central.disband()


def test_members_on_separate_networks_meet_through_tls_server(
    xprocess: XProcess, material: Material, tmp_path: Path
) -> None:
    if not possible():
        pytest.skip("network namespaces need root and iproute2")
    certificate = str(tmp_path / "cert.pem")
    key = str(tmp_path / "key.pem")
    line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=test"
    names = ["-addext", f"subjectAltName=IP:{HERE}", "-keyout", key, "-out", certificate]
    subprocess.run([*line.split(), *names], check=True, capture_output=True)
    with lan(3) as machines:
        keeping = ("--tls-certificate", certificate, "--tls-key", key)
        # the server's own data service is at a private address
        reach = ("--data-root", "/", "--allow-private-network")
        setting = Setting(
            HERE, keeping, ("--tls-ca", certificate, "--iroh-relay", "disabled", *reach), machines
        )
        central = Central(xprocess, tmp_path, material, setting, rounds_per_epoch=6, total_steps=6)
        try:
            tiers = [central.start(tier) for tier in (0, 1, 2)]
            assert [central.members[name].wait() for name in tiers] == [0, 0, 0]
            check_whole(central, tiers[0], 6)
            assert compare_replicas(central.diaries) > 6
        finally:
            central.disband()
