"""Test that the demonstration runs to its end with DisTrO. CI runs it with SparseLoCo."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from xprocess import XProcess

from e2e.processes import KILLED_SECONDS, Running, until
from e2e.run_inputs import ROOT

LIMIT_SECONDS = 600


@pytest.mark.slow
def test_demo_with_distro_keeps_its_promises(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    words = ["-m", "aftermath.demo", "--optimizer", "distro", "--dir", str(directory)]
    demo = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert "Optimizer: DisTrO" in demo.stdout
    report = json.loads((directory / "demo-report.json").read_text())
    assert report["replicas_identical"]
    assert report["rounds"] == 116


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_demo_after_signal_ends_with_its_processes(
    number: signal.Signals, xprocess: XProcess, tmp_path: Path
) -> None:
    words = ["-m", "aftermath.demo", "--dir", str(tmp_path / "demo")]
    demo = Running(xprocess, "demo", [sys.executable, *words])
    until(lambda: "The chain answers" in demo.output, "the network runs", watched=demo.check)
    descendants = psutil.Process(demo.pid).children(recursive=True)
    assert descendants
    os.kill(demo.pid, number)
    assert demo.wait() == 130, demo.last_lines
    assert demo.output.endswith("Stopped.\n"), demo.last_lines
    assert psutil.wait_procs(descendants, KILLED_SECONDS)[1] == []
