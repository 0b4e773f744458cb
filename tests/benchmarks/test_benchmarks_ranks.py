"""Test that sharded and unsharded moments train alike, and the names of the figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.test_benchmarks_step import BENCHMARKS


@pytest.mark.nightly  # a minute of CPU; tests/parallel covers that both ways train the same
def test_ranks_benchmark_gives_figures_of_both_optimizers() -> None:
    line = [sys.executable, str(BENCHMARKS / "ranks.py"), "--json", "--repetitions", "1"]
    output = json.loads(
        subprocess.run(line, stdout=subprocess.PIPE, check=True, timeout=280).stdout
    )
    for kind, per_parameter in (("adamw", 8), ("muon", 4)):
        figures = output[kind]
        assert len(figures["moments"]) == output["ranks"]
        assert sum(figures["moments"]) == pytest.approx(
            per_parameter * output["parameters"], rel=0.05
        )
        assert figures["first_dealt"] < figures["first_whole"]
        saved = figures["first_whole"] - figures["first_dealt"]
        assert saved > sum(figures["moments"]) - figures["moments"][0], (
            "the other ranks' moments at least"
        )
        assert figures["share_whole_s"] > figures["steps_whole_s"] > 0
