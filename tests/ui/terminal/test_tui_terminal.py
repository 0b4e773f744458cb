"""Tests of the screen process on a real terminal: how it ends, and terminals that get lines
instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ui.terminal.tui_terminal import Terminal

PROCESS = [sys.executable, str(Path(__file__).with_name("tui_process.py"))]


@pytest.fixture
def state(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


@pytest.mark.slow
@pytest.mark.parametrize("key", ["q", "\x03"])
def test_leave_key_ends_member_with_message(
    state: dict[str, str], key: str, tmp_path: Path
) -> None:
    with Terminal([*PROCESS, "stays"], {**state, "GO": str(tmp_path / "go")}) as terminal:
        terminal.shows("step 40 of 120")
        terminal.press("6")
        terminal.shows("a library says something")
        terminal.press(key)
        terminal.shows("Leaving: telling the run")
        (tmp_path / "go").touch()
        assert terminal.ended() == 0
        assert terminal.modes() == terminal.usual
        lines = terminal.after.splitlines()
        assert "run demo: step 40 of 120" in lines[0]
        assert lines[1].endswith("stopping")
        assert lines[2].endswith("left the run")
        assert lines[3] == "back to normal"


@pytest.mark.slow
def test_interrupt_before_screen_starts_leaves(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "stays"], state) as terminal:
        terminal.until(lambda: bool(children(terminal.process.pid)))
        terminal.press("\x03")
        assert terminal.ended() == 0
        assert "left the run" in terminal.after
        assert terminal.modes() == terminal.usual
        assert "Traceback" not in terminal.output


@pytest.mark.slow
def test_finished_run_closes_screen_before_first_draw(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "ends"], state) as terminal:
        assert terminal.ended() == 0
        assert "run demo: step 120 of 120" in terminal.after
        assert "the run is finished: 120 steps" in terminal.after
        assert terminal.modes() == terminal.usual
        assert "Traceback" not in terminal.output


@pytest.mark.slow
def test_killed_member_restores_terminal(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "stays"], state) as terminal:
        terminal.shows("step 40 of 120")
        terminal.process.send_signal(signal.SIGUSR1)
        terminal.shows("the process ended without a message; its last lines:")
        terminal.until(lambda: terminal.modes() == terminal.usual)
        terminal.shows("a library says something")
        assert terminal.ended() == -signal.SIGABRT


@pytest.mark.slow
def test_member_interrupted_while_loading_prints_only_that(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "loads"], state) as terminal:
        terminal.shows("step 40 of 120")
        terminal.press("\x03")
        terminal.shows("interrupted")
        terminal.until(lambda: terminal.modes() == terminal.usual)
        assert "without a message" not in terminal.output
        assert terminal.ended() == 130


@pytest.mark.slow
def test_closed_terminal_leaves_no_screen_process(state: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    environment = {**state, "GO": str(tmp_path / "go"), "LEFT": str(tmp_path / "left")}
    with Terminal([*PROCESS, "hangs-up"], environment) as terminal:
        terminal.shows("step 40 of 120")
        (screen,) = children(terminal.process.pid)
        terminal.hang_up()
        assert terminal.process.wait(60) == 0
    assert (tmp_path / "left").exists()
    assert ends(screen)


@pytest.mark.slow
def test_closed_terminal_of_killed_process_ends_screen(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "stays"], state) as terminal:
        terminal.shows("step 40 of 120")
        (screen,) = children(terminal.process.pid)
        terminal.hang_up()
        assert terminal.process.wait(60) == -signal.SIGHUP
    assert ends(screen)


@pytest.mark.slow
def test_killed_screen_falls_back_to_lines(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "stays"], state) as terminal:
        terminal.shows("step 40 of 120")
        (screen,) = children(terminal.process.pid)
        os.kill(screen, signal.SIGKILL)
        terminal.shows("the screen has ended; lines follow")
        assert terminal.modes() == terminal.usual
        terminal.process.send_signal(signal.SIGINT)
        terminal.shows("left the run")
        assert terminal.ended() == 0


@pytest.mark.slow
def test_blocked_terminal_delays_nobody(state: dict[str, str], tmp_path: Path) -> None:
    """An ssh session without a network blocks like this: nobody reads the output."""
    done_file = tmp_path / "done"
    with Terminal([*PROCESS, "floods"], {**state, "DONE": str(done_file)}) as terminal:
        deadline = time.monotonic() + 120
        while not done_file.exists():
            assert time.monotonic() < deadline
            assert terminal.process.poll() is None
            time.sleep(0.02)
        terminal.ended()
        assert terminal.modes() == terminal.usual


# --- without a usable terminal ---


def lines_of(text: str) -> list[str]:
    assert "\x1b[?1049h" not in text
    return [line for line in text.splitlines() if "step 40  loss" in line]


def test_pipe_gets_lines_immediately(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "stays"], state, stdout=subprocess.PIPE) as terminal:
        assert terminal.process.stdout is not None
        output = ""
        while "step 40  loss" not in output:
            output += os.read(
                terminal.process.stdout.fileno(), 4096
            ).decode()  # long before it ends
        assert lines_of(output)
        assert "\x1b" not in output
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(60) == 0


@pytest.mark.slow
def test_dumb_terminal_or_one_without_keys_gets_lines(state: dict[str, str]) -> None:
    with Terminal([*PROCESS, "ends"], {**state, "TERM": "dumb"}) as terminal:
        assert terminal.ended() == 0
        assert lines_of(terminal.output)
    with Terminal([*PROCESS, "ends"], state, stdin=subprocess.DEVNULL) as terminal:
        assert terminal.ended() == 0
        assert lines_of(terminal.output)


def children(process: int) -> list[int]:
    """Return the child processes of a process."""
    return [
        int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def ends(process: int) -> bool:
    """Return whether a process that is not our child ends within a minute."""
    deadline = time.monotonic() + 60
    while (directory := Path(f"/proc/{process}")).exists():
        if time.monotonic() > deadline:
            return "State:\tZ" in (directory / "status").read_text()
        time.sleep(0.1)
    return True
