"""Test that child processes end with their parent, even if it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from aftermath.testnet.chain import SOLANA
from aftermath.testnet.processes import (
    Process,
    ProcessError,
    at_once,
    call,
    stop_all,
    wait_for,
    watched_command,
)
from e2e.processes import KILLED_SECONDS, until

SLEEPER = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
STARTER = f"""
import os, sys, time
from pathlib import Path
from aftermath.testnet.processes import Process
process = Process("sleeper", [sys.executable, "-c", {SLEEPER + "time.sleep(600)"!r}], Path(sys.argv[1]), os.environ)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_children_end_with_killed_parent(tmp_path: Path) -> None:
    with subprocess.Popen([*python(STARTER), str(tmp_path / "log")]) as starter:
        family = psutil.Process(starter.pid)
        until(
            lambda: len(family.children(recursive=True)) >= 3,
            "child, grandchild and watcher are there",
            20,
        )
        descendants = family.children(recursive=True)
        starter.send_signal(signal.SIGKILL)
        assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []


def test_watched_process_ends_when_named_pipe_closes(tmp_path: Path) -> None:
    """A process in a pane needs a named pipe, because its standard input belongs to the user."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    descriptor = os.open(pipe, os.O_RDWR)
    line = watched_command(str(pipe), python("import time; time.sleep(600)"))
    with subprocess.Popen(line, start_new_session=True) as child:
        until(lambda: psutil.Process(child.pid).children(), "the watcher is there", 20)
        assert child.poll() is None
        os.close(descriptor)
        assert child.wait(KILLED_SECONDS) == -signal.SIGKILL


def test_process_status_id_and_signals_are_those_of_command(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ended = Process(
        "ended",
        python("import os, sys; print(os.getpid(), sys.stdin.read()); sys.exit(7)"),
        log,
        os.environ,
    )
    until(lambda: ended.code is not None, "it ends", 20)
    assert ended.code == 7
    assert log.read_text().split() == [str(ended.pid)]
    stubborn = "import signal, time; signal.signal(2, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    polite = Process(
        "polite",
        python("import time; print('ready', flush=True); time.sleep(600)"),
        tmp_path / "1",
        os.environ,
    )
    rude = Process("rude", python(stubborn), tmp_path / "2", os.environ)
    for process in (polite, rude):
        wait_for("it", lambda log=process.log: "ready" in log.read_text(), 20, process)
    watchers = [
        child for process in (polite, rude) for child in psutil.Process(process.pid).children()
    ]
    assert len(watchers) == 2
    stop_all([polite, rude], 2.0)
    assert polite.code in (1, -signal.SIGINT)  # what Python does with a KeyboardInterrupt
    assert rude.code == -signal.SIGKILL
    assert psutil.wait_procs(watchers, KILLED_SECONDS)[1] == []


def test_failed_command_error_has_its_last_output(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="no such luck"):
        call(python("import sys; sys.exit('no such luck')"), tmp_path / "log", os.environ)
    assert "no such luck" in (tmp_path / "log").read_text()
    with pytest.raises(ProcessError, match="failed: the disk is full") as known:
        call(
            python("import sys; sys.exit('error: the disk is full\\nfix: Free some')"),
            tmp_path / "log",
            os.environ,
        )
    assert known.value.fix == f"Free some; the whole log: {tmp_path / 'log'}"
    with pytest.raises(ProcessError, match="second"):
        at_once(
            [python("pass"), python("import sys; sys.exit('second')")],
            tmp_path / "keys.log",
            os.environ,
        )
    never = Process("never", python("print('and away')"), tmp_path / "never", os.environ)
    with pytest.raises(ProcessError, match="and away"):
        wait_for("it", lambda: False, 20, never)


@pytest.mark.parametrize("module", ["aftermath", "aftermath.server"])
def test_child_ignores_modules_in_working_directory(tmp_path: Path, module: str) -> None:
    """A user's `copy.py` must not replace Python's."""
    (tmp_path / "copy.py").write_text("raise SystemExit('this is not the standard module')")
    assert SOLANA[-1] == "aftermath"
    line = [*SOLANA[:-1], module, "--help"]
    subprocess.run(line, cwd=tmp_path, check=True, capture_output=True)
