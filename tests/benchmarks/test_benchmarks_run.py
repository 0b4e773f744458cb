"""Test that the benchmarks run with the current code. Speeds are not checked."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("line", "figures"),
    [
        pytest.param(
            ("localnet.py", "--transactions", "200"),
            ("http_per_second", "ratio", "ratio_ledger"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("p2p.py",),
            ("blob_mb_per_s", "ratio_to_tcp", "announcement_round_trip_ms"),
            # it moves hundreds of megabytes and covers no client code
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            (
                "state_roots.py",
                "--threads",
                "1",
                "--optimizers",
                "distro",
                "--sequences",
                "1",
                "--repetitions",
                "1",
            ),
            (
                "cpu_of_round",
                "copy_cpu_of_round",
                "distro.1.blocks",
                "distro.1.hash_ms",
                "distro.1.proof_bytes",
            ),
            marks=pytest.mark.nightly,  # ten CPU seconds, for a model that only benchmarks use
        ),
        pytest.param(
            ("round.py", "--members", "3"),
            ("3.rounds", "3.overhead_ms", "3.cpu_ms", "3.cores_busy"),
            marks=pytest.mark.nightly,  # a local network for a minute; the others take seconds
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_benchmark_script_prints_its_figures(
    line: tuple[str, ...], figures: tuple[str, ...]
) -> None:
    script, *arguments = line
    command = [sys.executable, ROOT / "benchmarks" / script, *arguments, "--json"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    output = json.loads(completed.stdout)
    assert all(reduce(getitem, figure.split("."), output) for figure in figures), output
