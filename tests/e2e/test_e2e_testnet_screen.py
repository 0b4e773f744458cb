"""Tests of a local testnet's screen on a real terminal: quit by a key, killed, and replaced by
lines.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from e2e.processes import CONSOLE, KILLED_SECONDS, PATIENCE
from e2e.run_inputs import RunInputs
from ui.terminal.tui_terminal import Terminal

SHORT = {"init_min_clients": 2, "min_clients": 1, "min_round_time": 0, "total_steps": 5000}


@pytest.fixture
def line(run_inputs: RunInputs, tmp_path: Path) -> list[str | Path]:
    config = run_inputs.config(tmp_path / "config", **SHORT)
    options = [
        "--num-clients",
        "2",
        "--backend",
        "centralized",
        "--server-port",
        "0",
        "--client-device",
        "cpu",
    ]
    place = ["--dir", tmp_path / "testnet", "--tui", "screen"]
    return [CONSOLE, "local-testnet", "start", "--config-path", config, *place, *options]


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


def family(terminal: Terminal) -> list[psutil.Process]:
    return psutil.Process(terminal.process.pid).children(recursive=True)


@pytest.mark.slow
def test_testnet_screen_shows_clients_kill_and_logs(
    line: list[str | Path], state: dict[str, str], tmp_path: Path
) -> None:
    kills = ["--random-kill-num", "1", "--random-kill-interval", "2", "--allowed-to-kill", "2"]
    with Terminal([*line, *kills], state, PATIENCE) as terminal:
        terminal.shows("local testnet of run local-testnet")
        terminal.shows("client-2 was killed (kill -9)")
        terminal.shows("client-2 is started again")
        terminal.press("3")
        terminal.shows("server ready run=local-testnet")
        terminal.press("4")
        terminal.shows("signed up for the next epoch")
        descendants = family(terminal)
        assert len(descendants) >= 5  # a server, a client, a watcher of each, and the screen
        terminal.press("q")
        terminal.shows("Ending: clients leave")
        assert terminal.ended() == 0
        assert "stopped: step" in terminal.after
        assert terminal.modes() == terminal.usual
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []


@pytest.mark.slow
def test_killed_testnet_ends_its_processes_and_resets_terminal(
    line: list[str | Path], state: dict[str, str]
) -> None:
    with Terminal(line, state, PATIENCE) as terminal:
        terminal.shows("started 2 clients")
        terminal.shows("2 of 2 run")
        deadline = time.monotonic() + PATIENCE
        while len(descendants := family(terminal)) < 7 and time.monotonic() < deadline:
            time.sleep(0.1)  # the clients run, but their child processes may not run yet
        assert len(descendants) >= 7
        terminal.process.send_signal(signal.SIGKILL)
        terminal.shows("the process ended without a message; its last lines:")
        terminal.until(lambda: terminal.modes() == terminal.usual)
        terminal.ended()
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []


# tests/testnet and tests/ui have the lines, and terminals without a screen, in slow.
@pytest.mark.nightly
def test_testnet_on_dumb_terminal_prints_lines(
    line: list[str | Path], state: dict[str, str]
) -> None:
    with Terminal(line, {**state, "TERM": "dumb"}, PATIENCE) as terminal:
        terminal.shows("testnet  | started 2 clients")
        terminal.shows("client-1 | ")
        descendants = family(terminal)
        terminal.press("\x03")
        assert terminal.ended() == 130
        assert "\x1b[?1049h" not in terminal.output
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []
