"""Test the panes of a testnet: each has a process that is watched, killed, restarted, and ends with
us.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aftermath.testnet.panes import Panes
from e2e.processes import KILLED_SECONDS, until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
STARTER = """
import os, sys, time
from pathlib import Path
from aftermath.testnet.panes import Panes
panes = Panes(Path(sys.argv[1]), os.environ)
stubborn = "import signal, time; signal.signal(signal.SIGHUP, signal.SIG_IGN); time.sleep(600)"
for name in ("one", "two"):
    panes.open(name, [sys.executable, "-c", stubborn])
print("open", flush=True)
time.sleep(600)
"""


def shows(text: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        f"import sys, time; print({text!r}, sys.stdin.isatty(), flush=True); time.sleep(600)",
    ]


@pytest.fixture
def panes(tmp_path: Path) -> Iterator[Panes]:
    panes = Panes(tmp_path, os.environ)
    yield panes
    panes.close()


def test_pane_process_is_watched_killed_and_restarted(panes: Panes) -> None:
    first = panes.open("first", shows("here I am"))
    second = panes.open("second", [sys.executable, "-c", "exit(3)"])
    until(lambda: "here I am True" in first.last_lines(), "a terminal shows what it says", 20)
    until(lambda: second.code == 3, "its exit status is known", 20)
    assert first.code is None
    first.kill()
    assert first.code == -signal.SIGKILL
    again = panes.open("first", shows("and back"))
    until(lambda: "and back" in again.last_lines(), "the pane has another process", 20)
    again.interrupt()
    until(lambda: again.code is not None, "Ctrl-C ends it", 20)


@pytest.mark.slow
def test_pane_processes_end_with_their_opener(tmp_path: Path) -> None:
    """Even a process that ignores the loss of its terminal ends."""
    line = [sys.executable, "-c", STARTER, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "open\n"
        family = psutil.Process(starter.pid)
        try:  # tmux and what runs in two panes, each with a watcher
            descendants = until(
                lambda: (all_of := family.children(recursive=True))[5:] and all_of,
                "all are there",
                20,
            )
        finally:
            starter.kill()
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []
