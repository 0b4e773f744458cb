"""Tests of `train --logs tui` and a server's screen as real processes on a terminal, and of the q
key.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.cli_lone_member import quick_config
from cli.cli_runs import CONSOLE, LOCAL, Shell
from ui.terminal.tui_terminal import Terminal

PATIENCE = 400.0
"""Seconds: a deadline for broken code. A busy machine takes minutes for a member's whole life."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE)]


def test_member_screen_shows_training_and_q_leaves(
    owner: Shell, run_id: str, run_dir: Path, tmp_path: Path
) -> None:
    config = quick_config(run_dir, tmp_path, {"rounds_per_epoch = 2": "rounds_per_epoch = 40"})
    for command, *arguments in (
        ("create-run", "--name", "a run"),
        ("update-config", "--config-path", config),
        ("set-paused", "resume"),
    ):
        assert owner(command, "--run-id", run_id, *arguments).code == 0
    events = tmp_path / "events"
    words = [
        "train",
        "--rpc",
        owner.rpc,
        "--run-id",
        run_id,
        "-w",
        owner.wallet,
        "--logs",
        "tui",
        *LOCAL,
    ]
    with Terminal(
        [CONSOLE, *words, "--micro-batch-size", "1", "--events-dir", events], {}, PATIENCE
    ) as terminal:
        terminal.shows(f"run {run_id}, tier 0")
        terminal.shows("1 take part, 1 seat in use")
        terminal.press("3")
        terminal.shows("of this member's share")
        terminal.press("2")
        terminal.shows("(you)")
        terminal.press("q")
        terminal.shows("left the run")
        assert terminal.ended() == 0
        assert terminal.modes() == terminal.usual
        screen = terminal.after
        assert f"run {run_id}: step " in screen
        assert "stopping" in screen
    kinds = [
        json.loads(line)["kind"]
        for file in sorted(events.iterdir())
        for line in file.read_text().splitlines()
    ]
    assert kinds[-2:] == ["leaving", "left"]
    (member,) = owner("show-run", "--run-id", run_id).data["members"]
    assert member["standing"] != "takes part"


def test_server_screen_opens_and_q_stops_server(run_dir: Path, tmp_path: Path) -> None:
    state = quick_config(run_dir, tmp_path)
    command = [
        CONSOLE.with_name("aftermath-centralized"),
        "server",
        "run",
        "--state",
        state,
        "--host",
        "127.0.0.1",
    ]
    environment = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    with Terminal([*command, "--run-id", "demo"], environment, PATIENCE) as terminal:
        terminal.shows("server of run demo")
        terminal.shows("waiting for members (epoch 0)")
        terminal.press("4")
        terminal.shows("0 identities")
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.modes() == terminal.usual
        assert "run demo is waiting for members: epoch 0, step 0 of" in terminal.after
        assert "interrupted" not in terminal.after
    with Terminal(
        [*command, "--run-id", "demo"], {**environment, "TERM": "dumb"}, PATIENCE
    ) as terminal:
        terminal.shows("run demo is waiting for members: epoch 0, step 0 of")
        terminal.press("\x03")
        assert terminal.ended() == 0
