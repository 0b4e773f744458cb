"""Test that the demonstration runs to its end with DisTrO. CI runs it with SparseLoCo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
