"""A run for which one needs leave: refused without, admitted as a delegate, with the scripts a run
owner uses.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aftermath.chain.wallet import create_wallet
from aftermath.rules.state import RunState
from e2e.company import Company, Player
from e2e.material import ROOT, Material
from e2e.processes import CONSOLE, PATIENCE

pytestmark = pytest.mark.slow
STEPS = 4


def script(company: Company, name: str, *words: str | Path) -> str:
    """Run a shell script of the repository against the network; what it printed."""
    line = ["sh", ROOT / "scripts" / name, company.network.rpc, *words]
    path = f"{CONSOLE.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def refusal(company: Company, player: Player) -> str:
    """What a member says that is not admitted."""
    process = company.start(player)
    process.expected = False
    assert process.wait() == 11
    assert "Traceback" not in process.output
    return process.output


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)  # both run the same program
def test_permissioned_run_admits_delegates_only(company: Company, material: Material) -> None:
    grantor = company.place / "grantor.json"
    grantee = company.place / "grantee.json"
    grantor_key = create_wallet(grantor).pubkey
    grantee_key = create_wallet(grantee).pubkey
    rules = {"init_min_clients": 2, "rounds_per_epoch": STEPS, "total_steps": STEPS}
    company.configure(material.config(company.place, **rules), "--join-authority", str(grantor_key))
    company.command("set-paused", "resume", "--run-id", company.run_id)
    assert company.run.join_authority == bytes(grantor_key) != bytes(company.owner_key)

    stranger = company.player(0)
    said = refusal(company, stranger)
    assert f"wallet {stranger.wallet} is not admitted to run" in said
    assert f"Ask the run's join authority {grantor_key} for an authorization: " in said

    delegates = [company.player(tier) for tier in (0, 1)]
    assert str(grantee_key) in script(
        company, "join-authorization-create.sh", grantor, str(grantee_key)
    )
    keys = [player.key for player in delegates]
    said = script(company, "join-authorization-set-delegates.sh", str(grantor_key), grantee, *keys)
    assert all(str(player.wallet) in said for player in delegates)

    said = refusal(company, stranger)  # it is still nobody's delegate
    assert f"wallet {stranger.wallet} is not admitted to run" in said
    for player in delegates:
        company.start(player, "--authorizer", str(grantee_key))
    company.until_run(lambda run: run.state is RunState.FINISHED, "the run finishes")
    assert [player.process.wait() for player in delegates] == [0, 0]
    assert company.compare_replicas() == 2 * (STEPS + 1)
    assert company.members.find(bytes(stranger.wallet)) is None


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_member_that_waits_in_a_run_that_is_closed_is_told_so(
    company: Company, material: Material
) -> None:
    """The member does not try to leave the closed run."""
    company.configure(material.config(company.place, init_min_clients=2))
    waiting = company.player(0)
    process = company.start(waiting)
    process.expected = False
    company.until(lambda: waiting.diary.saw("state"), "it waits in the paused run")
    company.command("close-run", "--run-id", company.run_id, "--yes")
    assert process.wait() == 1
    assert "the run was closed" in process.output
    assert "could not be told" not in process.output
    assert "Traceback" not in process.output
