"""Test that the testnet kills only clients that have trained, and none that is still starting."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from aftermath.base.stdio import Verbosity
from aftermath.testnet import run
from aftermath.testnet.backends import Open
from aftermath.testnet.chaos import ChaosSchedule
from aftermath.testnet.display import DisplayLines
from aftermath.testnet.files import SHIPPED, chosen
from aftermath.testnet.plan import ClientExtras, LocalTestnetClient, LocalTestnetPlan
from aftermath.testnet.processes import Running
from aftermath.testnet.run import Ending
from testnet.starting_client import STARTS, TRAINS, actions


class Starting:
    """A backend without a run. Its clients only start, slowly."""

    keeper = "nobody"

    def __init__(self, place: Path) -> None:
        self._place = place

    def start(self, open_process: Open) -> Running:
        return open_process(self.keeper, [sys.executable, "-c", "import time; time.sleep(600)"])

    def client(self, client: LocalTestnetClient) -> list[str]:
        return [
            sys.executable,
            "-m",
            "testnet.starting_client",
            str(client.number),
            str(self._place),
        ]


@pytest.mark.slow
def test_chaos_kills_only_clients_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills are due far more often than a client takes to start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "BACK_SECONDS", 0.5)
    monkeypatch.setattr(run, "LOOK_SECONDS", 0.05)
    for name in ("model", "tokens"):  # these exist, so nothing is created
        (tmp_path / "runs" / "demo" / name).mkdir(parents=True)
    plan = LocalTestnetPlan(
        chosen(SHIPPED / "demo"),
        (LocalTestnetClient(1, 1), LocalTestnetClient(2, 2)),
        tmp_path,
        0,
        ClientExtras(),
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    lines = DisplayLines(Console(quiet=True), Verbosity.INFO, 8)
    testnet = run.Testnet(
        plan, Starting(tmp_path), ChaosSchedule(1, 0.2, (1, 2)), environment, lines
    )
    summary = testnet.perform(240)
    assert [actions(tmp_path, number) for number in (1, 2)] == [[STARTS, TRAINS, STARTS]] * 2
    assert (summary.ending, summary.kills) == (Ending.FINISHED, 2)
