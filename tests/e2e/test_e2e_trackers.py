"""Tests of experiment trackers with real members: the tracked runs match the members' events."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from xprocess import XProcess

from e2e.event_log import EventLog
from e2e.processes import CONSOLE, Running
from e2e.run_inputs import RunInputs
from events.test_trackers import with_trackio, with_wandb
from events.wandb_file import read_wandb_file

# tests/events/test_trackers.py covers both trackers in the slow tests.
pytestmark = pytest.mark.nightly


def losses_of_wandb(place: Path) -> dict[str, list[Any]]:
    """Return the losses by wallet."""
    losses = {}
    for file in place.glob("wandb/offline-run-*/*.wandb"):
        about, rows = read_wandb_file(file)
        losses[about["config"]["wallet"]] = [
            (row["step"], row["loss"]) for row in rows if "loss" in row
        ]
    return losses


def losses_of_trackio(place: Path) -> dict[str, list[Any]]:
    with sqlite3.connect(place / "lab.db") as database:
        wallets = dict(database.execute("select run_id, config from configs").fetchall())
        losses: dict[str, list[Any]] = {
            json.loads(config)["wallet"]: [] for config in wallets.values()
        }
        for run, step, metrics in database.execute(
            "select run_id, step, metrics from metrics order by id"
        ):
            if "loss" in (row := json.loads(metrics)):
                losses[json.loads(wallets[run])["wallet"]].append((step, row["loss"]))
    return losses


@with_wandb
@with_trackio
def test_testnet_clients_report_losses_to_trackers(
    xprocess: XProcess, run_inputs: RunInputs, tmp_path: Path
) -> None:
    config = run_inputs.config(tmp_path / "config", init_min_clients=2, total_steps=12)
    place = tmp_path / "testnet"
    line = [
        CONSOLE,
        "local-testnet",
        "start",
        "--config-path",
        config,
        "--dir",
        place,
        "--headless",
    ]
    line += [
        "--num-clients",
        2,
        "--backend",
        "centralized",
        "--server-port",
        0,
        "--client-device",
        "cpu",
    ]
    line += ["--wandb-project", "lab", "--trackio-project", "lab"]
    kept_in = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "TRACKIO_DIR": str(tmp_path)}
    testnet = Running(xprocess, "trackers", [str(word) for word in line], kept_in)
    assert testnet.wait() == 0, testnet.last_lines
    losses_by_wallet = {}
    for number in (1, 2):
        event_log = EventLog(place / "events" / f"client-{number}")
        (started,) = event_log.events_of("started")[:1]
        losses_by_wallet[started["wallet"]] = [
            (event["step"], event["loss"]) for event in event_log.events_of("trained")
        ]
    assert all(len(losses) >= 10 for losses in losses_by_wallet.values())
    assert losses_of_wandb(tmp_path) == losses_by_wallet
    assert losses_of_trackio(tmp_path) == losses_by_wallet
