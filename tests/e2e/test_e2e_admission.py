"""Tests of a run that needs an authorization: refused without one, admitted as a delegate, with the
run owner's scripts.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.rules.state import RunState
from e2e.cluster import ClusterMember, TrainingCluster
from e2e.processes import CONSOLE, PATIENCE
from e2e.run_inputs import ROOT, RunInputs

pytestmark = pytest.mark.slow
STEPS = 4


def script(cluster: TrainingCluster, name: str, *words: str | Path) -> str:
    """Run a shell script of the repository against the network, and return its output."""
    line = ["sh", ROOT / "scripts" / name, cluster.network.rpc, *words]
    path = f"{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}"
    completed = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def refusal(cluster: TrainingCluster, member: ClusterMember) -> str:
    """Return the error of a member that is not admitted."""
    process = cluster.start(member)
    process.expected = False
    assert process.wait() == 11
    assert "Traceback" not in process.output
    return process.output


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)  # both engines run the same program
def test_permissioned_run_admits_delegates_only(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    grantor = cluster.place / "grantor.json"
    grantee = cluster.place / "grantee.json"
    grantor_key = create_wallet(grantor).pubkey
    grantee_key = create_wallet(grantee).pubkey
    rules = {"init_min_clients": 2, "rounds_per_epoch": STEPS, "total_steps": STEPS}
    cluster.configure(
        run_inputs.config(cluster.place, **rules), "--join-authority", str(grantor_key)
    )
    cluster.command("set-paused", "resume", "--run-id", cluster.run_id)
    assert cluster.run.join_authority == bytes(grantor_key) != bytes(cluster.owner_key)

    stranger = cluster.add_member(0)
    output = refusal(cluster, stranger)
    assert f"wallet {stranger.wallet} is not admitted to run" in output
    assert f"Ask the run's join authority {grantor_key} for an authorization: " in output

    delegates = [cluster.add_member(tier) for tier in (0, 1)]
    assert str(grantee_key) in script(
        cluster, "join-authorization-create.sh", grantor, str(grantee_key)
    )
    keys = [member.key for member in delegates]
    output = script(
        cluster, "join-authorization-set-delegates.sh", str(grantor_key), grantee, *keys
    )
    assert all(str(member.wallet) in output for member in delegates)

    output = refusal(cluster, stranger)  # it is not a delegate yet
    assert f"wallet {stranger.wallet} is not admitted to run" in output
    for member in delegates:
        cluster.start(member, "--authorizer", str(grantee_key))
    cluster.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [member.process.wait() for member in delegates] == [0, 0]
    assert cluster.compare_replicas() == 2 * (STEPS + 1)
    assert cluster.chain_members.find(bytes(stranger.wallet)) is None


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_member_waiting_in_closed_run_ends_with_reason(
    cluster: TrainingCluster, run_inputs: RunInputs
) -> None:
    """The member does not try to leave the closed run."""
    cluster.configure(run_inputs.config(cluster.place, init_min_clients=2))
    waiting = cluster.add_member(0)
    process = cluster.start(waiting)
    process.expected = False
    cluster.until(lambda: waiting.event_log.events_of("state"), "it waits in the paused run")
    cluster.command("close-run", "--run-id", cluster.run_id, "--yes")
    assert process.wait() == 1
    assert "the run was closed" in process.output
    assert "could not be told" not in process.output
    assert "Traceback" not in process.output
